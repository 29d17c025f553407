"""Error lines that training logs are known to hold, each with its cause and the way out. Pure.

From public failures of multi-node training (issues of accelerate, DeepSpeed, torch, NCCL, Axolotl). Called
by `logs.py`; findings and the run report quote it. A line that is only the echo of another rank's death is
marked as such, so that it is never taken for the cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Trouble:
    """A kind of error line.

    Attributes:
        name: stable, for evidence and tests.
        echo: it says that something else went wrong earlier or elsewhere.
    """

    name: str
    pattern: re.Pattern[str]
    cause: str
    hint: str
    echo: bool = False


def _trouble(name: str, pattern: str, cause: str, hint: str, *, echo: bool = False) -> Trouble:
    return Trouble(name, re.compile(pattern), cause, hint, echo)


TROUBLES: Final[tuple[Trouble, ...]] = (
    _trouble(
        "out-of-gpu-memory",
        r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory",
        "The GPU's memory did not suffice.",
        "Lower micro_batch_size or sequence_len, turn gradient_checkpointing on, or take a higher ZeRO stage.",
    ),
    _trouble(
        "killed",
        r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|\bKilled\b$|oom-kill",
        "A process was killed from outside, most often because the container ran out of host memory.",
        "Give the container more memory, or lower dataset_num_proc and dataloader_num_workers.",
    ),
    _trouble(
        "address-in-use",
        r"Address already in use|EADDRINUSE|errno: 98|another process is utilizing it",
        "Another process holds the rendezvous port.",
        "End that process, or retry: rankcall agrees on a port that is free.",
    ),
    _trouble(
        "rendezvous-timeout",
        r"client socket has timed out after|DistNetworkError|RendezvousTimeoutError|RendezvousConnectionError",
        "A rank could not reach the rendezvous on rank 0's replica in time.",
        "Look at the tcp stage: rank 0's port must be reachable from every replica.",
    ),
    _trouble(
        "gloo-mesh",
        r"Gloo connectFullMesh failed|gloo.*(Connection refused|connectFullMesh)|Connection refused, remote=\[127\.",
        "The ranks could not connect to each other by gloo; one of them advertised an address others cannot reach.",
        "GLOO_SOCKET_IFNAME must name the interface that routes to the peers; leave it to rankcall.",
    ),
    _trouble(
        "gloo-view",
        r"no support for view|is a view and is being modified inplace",
        "gloo refuses the in-place view that DeepSpeed's ZeRO 1 and 2 gather into.",
        "Train with rankcall's agent.cpu_plugin.CpuPlugin in the config's plugins.",
    ),
    _trouble(
        "no-accelerator",
        r"Cannot access accelerator device when none is available|No CUDA GPUs are available|Torch not compiled with CUDA",
        "The training wants a GPU that this replica does not have.",
        "Submit with --gpus-per-node 0 to train on the CPU, or check the driver with `nvidia-smi`.",
    ),
    _trouble(
        "arch-not-built",
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation",
        "This torch was not built for the GPU's compute capability.",
        "Take an image whose torch lists the GPU's sm_… in torch.cuda.get_arch_list().",
    ),
    _trouble(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "The host's driver is older than the image's CUDA.",
        "Choose replicas with a newer driver, or an image with an older CUDA.",
    ),
    _trouble(
        "nccl-no-interface",
        r"Bootstrap : no socket interface found|no socket interface found",
        "NCCL_SOCKET_IFNAME names an interface that this replica does not have.",
        "Leave NCCL_SOCKET_IFNAME to rankcall, which derives it on each replica.",
    ),
    _trouble(
        "nccl-shm",
        r"Error while creating shared memory segment|/dev/shm/nccl-\S+ .*No space left",
        "The container's shared memory is too small for NCCL.",
        "Start the container with a larger /dev/shm (1 GB per GPU), or set NCCL_SHM_DISABLE=1.",
    ),
    _trouble(
        "nccl-memlock",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        "The limit of locked memory is too low for RDMA.",
        "Raise `ulimit -l` to unlimited, or set NCCL_IB_DISABLE=1.",
    ),
    _trouble(
        "nccl-connect",
        r"NCCL WARN.*(Connection refused|Call to connect)|socketStartConnect|socketPollConnect.*(refused|timed out)",
        "NCCL could not connect to a peer's ephemeral port.",
        "Open all high ports between the replicas, not 29500 alone.",
    ),
    _trouble(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout",
        "A collective was not joined by all ranks in time: one of them stopped issuing them.",
        "Look at the rank that lags behind: its stack and log say what it waits for.",
    ),
    _trouble(
        "accelerate-collision",
        r"the following accelerate config variables will be ignored|When using `deepspeed_config_file`",
        "Keys of the accelerate file collide with its deepspeed_config_file.",
        "Keep only deepspeed_config_file, zero3_init_flag and the launcher under deepspeed_config.",
    ),
    _trouble(
        "deepspeed-batch",
        r"Check batch related parameters\. train_batch_size is not equal",
        "The batch sizes in the DeepSpeed JSON do not fit this world size.",
        'Write "auto" for train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps.',
    ),
    _trouble(
        "deepspeed-op",
        r"cpu_adam (cuda )?is missing|Unable to JIT load the|Error building extension|CUDAMismatchException|"
        r"CUDA_HOME does not exist",
        "DeepSpeed could not compile one of its operators.",
        "Turn offload_optimizer off in the DeepSpeed JSON, or install a compiler and the CUDA toolkit of torch.",
    ),
    _trouble(
        "loss-scale",
        r"Current loss scale already at minimum",
        "fp16 overflowed again and again: the loss is not finite any more.",
        "Train in bf16, or lower the learning rate.",
    ),
    _trouble(
        "hub-rate-limit",
        r"429 Client Error|Too Many Requests",
        "The model hub refused so many requests.",
        "Let the prepare stage download once (a shared HF_HOME), and set HF_TOKEN.",
    ),
    _trouble(
        "hub-gated",
        r"Cannot access gated repo|GatedRepoError|You must be authenticated|401 Client Error",
        "The model or dataset is gated and the token does not open it.",
        "Accept its terms on the hub, and set HF_TOKEN on every replica.",
    ),
    _trouble(
        "disk-full",
        r"No space left on device|PytorchStreamWriter failed writing file|Disk quota exceeded",
        "The disk is full.",
        "Free space under output_dir and HF_HOME; set save_total_limit.",
    ),
    _trouble(
        "missing-checkpoint",
        r"Can't find a valid checkpoint|zero checkpoints paths are missing",
        "This replica does not have the checkpoint, or only its part of it.",
        "Put output_dir on a shared volume, or start without resume_from_checkpoint.",
    ),
    _trouble(
        "empty-shards",
        r"copying a param with shape torch\.Size\(\[0\]\)",
        "The saved model holds empty tensors: ZeRO-3 was not gathered when it was saved.",
        "Name the ZeRO-3 file in Axolotl's deepspeed: too; the last checkpoint may be whole.",
    ),
    _trouble(
        "stale-file-handle",
        r"Stale file handle",
        "A cache on a network file system vanished under the training.",
        "Put TRITON_CACHE_DIR and HF_DATASETS_CACHE on the container's own disk.",
    ),
    _trouble(
        "missing-module",
        r"ModuleNotFoundError: No module named",
        "A package is missing in the training environment.",
        "Install it in the image of every replica.",
    ),
    _trouble(
        "missing-file",
        r"FileNotFoundError:",
        "A file the training wants is not on this replica.",
        "Send it with the submission, or put it at the same path on every replica.",
    ),
    _trouble(
        "config-invalid",
        r"pydantic_core\._pydantic_core\.ValidationError|validation errors? for AxolotlInputConfig|AxolotlConfigWCapabilities",
        "Axolotl refused the configuration.",
        "Read the lines below it: they name the key.",
    ),
    _trouble(
        "peer-died",
        r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process exited or there was a network error",
        "Another rank went away first.",
        "Look for the first failure on the other ranks.",
        echo=True,
    ),
    _trouble(
        "store-gone",
        r"TCPStore server has shut down too early|should dump.* flag on TCPStore",
        "Rank 0, which keeps the store, ended first.",
        "Look at rank 0's log.",
        echo=True,
    ),
    _trouble(
        "child-failed",
        r"ChildFailedError|torch\.distributed\.elastic.*failed \(exitcode",
        "A process of this replica ended with an error.",
        "The traceback above it says which.",
        echo=True,
    ),
    _trouble(
        "exception",
        r"^(?:\[rank\d+\]: ?)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?:: |$)",
        "The training raised an exception.",
        "Read the traceback above this line.",
    ),
)


# What only warns or informs, and the source lines inside a traceback, tell of no failure.
_HARMLESS = re.compile(r"\[(?:DEBUG|INFO|WARNING)\]|^(?:\[rank\d+\]:)?\s{2,}|Warning: ")
# Indented all the same: what torchrun says in its summary of how a process ended.
_OUTCOME = re.compile(r"^\s+(?:exitcode  |traceback) : ")
# A progress bar ends no line: what is printed next stands right behind it.
_BAR = re.compile(r"^.*\d+/\d+ \[[^\]]*\]\s?(?=\S)")


def trouble_in(line: str) -> Trouble | None:
    """The first kind that this line is of; the special ones come before the general."""
    line = _BAR.sub("", line)
    if _HARMLESS.search(line) and not _OUTCOME.search(line):
        return None
    for trouble in TROUBLES:
        if trouble.pattern.search(line):
            return trouble
    return None
