"""Error lines that training logs are known to hold, of machines: echoes of a death elsewhere, memory, GPUs, network, collectives.

From public failures of multi-node training (issues of accelerate, DeepSpeed, torch, NCCL, Axolotl). The special kinds
come before the general ones: the first that fits names the line. Read by `trouble.py`.
"""

from __future__ import annotations

from typing import Final

from coordinator.core.trouble_kind import Trouble
from coordinator.core.trouble_kind import kind_of_line as _trouble

MACHINE: Final[tuple[Trouble, ...]] = (
    _trouble(
        "store-gone",
        r"TCPStore server has shut down too early|should dump.* flag on TCPStore",
        "Rank 0, which keeps the store, ended first.",
        "Look at rank 0's log.",
        echo=True,
    ),
    _trouble(
        "peer-died",
        r"Connection closed by (?:remote )?peer|Connection reset by (?:remote )?peer|Broken pipe|"
        r"remote process exited or there was a network error|ncclRemoteError|recvValue failed|failed to recv, got 0 bytes",
        "Another rank went away first.",
        "Look for the first failure on the other ranks.",
        echo=True,
    ),
    _trouble(
        "worker-killed",
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        "A data loader's worker process was killed: memory ran out, or /dev/shm did (a bus error).",
        "Lower dataloader_num_workers, start the container with a larger /dev/shm, or give it more memory.",
        code="RUN041",
        kind="resources",
    ),
    _trouble(
        "out-of-gpu-memory",
        r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory",
        "The GPU's memory did not suffice.",
        "Lower micro_batch_size or sequence_len, turn gradient_checkpointing on, or take a higher ZeRO stage.",
        code="RUN040",
        kind="resources",
    ),
    _trouble(
        "out-of-host-memory",
        r"DefaultCPUAllocator: (?:can't|not enough)|^(?:\[rank\d+\]: ?)?MemoryError|"
        r"OSError: \[Errno 12\]|std::bad_alloc",
        "The replica's own memory did not suffice.",
        "Give the container more memory, or lower dataset_num_proc and dataloader_num_workers; turn offloading to the CPU off.",
        code="RUN041",
        kind="resources",
    ),
    _trouble(
        "gpu-broken",
        r"uncorrectable ECC error|GPU is lost|fallen off the bus|CUDA error: (?:unspecified launch failure|hardware stack error)|"
        r"NVRM: Xid",
        "A GPU of this replica reported a hardware fault.",
        "Take this replica out and let a spare one have its rank; tell its provider.",
        code="RUN044",
        kind="replica",
    ),
    _trouble(
        "gpu-library-memory",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_NOT_INITIALIZED",
        "A GPU library found no memory left to start with.",
        "Lower micro_batch_size or sequence_len; see whether another process holds memory of the GPU.",
        code="RUN040",
        kind="resources",
    ),
    _trouble(
        "index-out-of-range",
        r"device-side assert triggered|Assertion `?srcIndex < srcSelectDimSize",
        "An index was out of range on the GPU: most often a token that the model's embedding does not have.",
        "Check that tokenizer and base model belong together, and special tokens that were added.",
        code="RUN050",
        kind="configuration",
    ),
    _trouble(
        "no-bf16",
        r"Your setup doesn't support bf16|[Bb]f16 (?:requested|is not supported|not supported)|"
        r"FlashAttention only supports Ampere",
        "The GPU is older than what the configuration asks of it (bf16 and flash attention need Ampere).",
        "Set bf16: false, fp16: true, in the DeepSpeed JSON too, and flash_attention: false.",
        code="RUN048",
        kind="configuration",
    ),
    _trouble(
        "name-not-resolved",
        r"Temporary failure in name resolution|Name or service not known|"
        r"getaddrinfo(?:\(\))? failed|nodename nor servname|gai error|Failed to resolve|"
        r"could not be resolved",
        "A host name could not be resolved.",
        "Leave addresses to rankcall, which uses numbers; for the hub, check the container's DNS.",
        code="RUN042",
        kind="network",
    ),
    _trouble(
        "killed",
        r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|\bKilled\b$|oom-kill",
        "A process was killed from outside, most often because the container ran out of host memory.",
        "Give the container more memory, or lower dataset_num_proc and dataloader_num_workers.",
        kind="replica",
    ),
    _trouble(
        "address-in-use",
        r"Address already in use|EADDRINUSE|errno: 98|another process is utilizing it",
        "Another process holds the rendezvous port.",
        "End that process, or retry: rankcall agrees on a port that is free.",
        code="RUN042",
        kind="network",
    ),
    _trouble(
        "rendezvous-timeout",
        r"client socket has timed out after|DistNetworkError|RendezvousTimeoutError|"
        r"RendezvousConnectionError",
        "A rank could not reach the rendezvous on rank 0's replica in time.",
        "Look at the tcp stage: rank 0's port must be reachable from every replica.",
        code="RUN042",
        kind="network",
    ),
    _trouble(
        "gloo-mesh",
        r"Gloo connectFullMesh failed|gloo.*(Connection refused|connectFullMesh)|"
        r"Connection refused, remote=\[127\.",
        "The ranks could not connect to each other by gloo; one of them advertised an address others cannot reach.",
        "GLOO_SOCKET_IFNAME must name the interface that routes to the peers; leave it to rankcall.",
        code="RUN042",
        kind="network",
    ),
    _trouble(
        "gloo-view",
        r"no support for view|is a view and is being modified inplace",
        "gloo refuses the in-place view that DeepSpeed's ZeRO 1 and 2 gather into.",
        "Train with rankcall's agent.cpu_plugin.CpuPlugin in the config's plugins.",
        code="RUN048",
        kind="configuration",
    ),
    _trouble(
        "no-accelerator",
        r"Cannot access accelerator device when none is available|No CUDA GPUs are available|"
        r"Torch not compiled with CUDA",
        "The training wants a GPU that this replica does not have.",
        "Submit with --gpus-per-node 0 to train on the CPU, or check the driver with `nvidia-smi`.",
        code="RUN044",
        kind="configuration",
    ),
    _trouble(
        "arch-not-built",
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation",
        "This torch was not built for the GPU's compute capability.",
        "Take an image whose torch lists the GPU's sm_… in torch.cuda.get_arch_list().",
        code="RUN044",
        kind="configuration",
    ),
    _trouble(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "The host's driver is older than the image's CUDA.",
        "Choose replicas with a newer driver, or an image with an older CUDA.",
        code="RUN044",
        kind="configuration",
    ),
    _trouble(
        "nccl-no-interface",
        r"Bootstrap : no socket interface found|no socket interface found",
        "NCCL_SOCKET_IFNAME names an interface that this replica does not have.",
        "Leave NCCL_SOCKET_IFNAME to rankcall, which derives it on each replica.",
        code="RUN043",
        kind="configuration",
    ),
    _trouble(
        "nccl-shm",
        r"Error while creating shared memory segment|/dev/shm/nccl-\S+ .*No space left",
        "The container's shared memory is too small for NCCL.",
        "Start the container with a larger /dev/shm (1 GB per GPU), or set NCCL_SHM_DISABLE=1.",
        code="RUN043",
        kind="configuration",
    ),
    _trouble(
        "nccl-memlock",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        "The limit of locked memory is too low for RDMA.",
        "Raise `ulimit -l` to unlimited, or set NCCL_IB_DISABLE=1.",
        code="RUN043",
        kind="configuration",
    ),
    _trouble(
        "nccl-connect",
        r"NCCL WARN.*(Connection refused|Call to connect)|socketStartConnect|"
        r"socketPollConnect.*(refused|timed out)",
        "NCCL could not connect to a peer's ephemeral port.",
        "Open all high ports between the replicas, not 29500 alone.",
        code="RUN043",
        kind="network",
    ),
    _trouble(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout",
        "A collective was not joined by all ranks in time: one of them stopped issuing them.",
        "Look at the rank that lags behind: its stack and log say what it waits for.",
        code="RUN053",
        kind="network",
    ),
    _trouble(
        "nccl-ib",
        r"NET/IB ?: ?Got completion|local access violation|ibv_\w+ failed|NET/IB.*(?:status=\d+|vendor err)",
        "NCCL's traffic over InfiniBand or RoCE failed: adapters that do not reach each other, or different MTUs.",
        "Set NCCL_IB_DISABLE=1, or NCCL_IB_HCA to the adapters that are connected, with one MTU.",
        code="RUN043",
        kind="network",
    ),
    _trouble(
        "nccl-disagree",
        r"Message truncated ?: ?received \d+ bytes instead of|NCCL WARN Mismatched|"
        r"collective mismatch|Detected mismatch between collectives",
        "The ranks called different collectives, or have different versions of NCCL.",
        "Run one image with one environment on every replica; look for code that only some ranks run.",
        code="RUN043",
        kind="configuration",
    ),
    _trouble(
        "nccl-usage",
        r"ncclInvalidUsage|ncclInvalidArgument|Duplicate GPU detected",
        "NCCL was called in a way it refuses: two ranks on one GPU, or another number of GPUs than expected.",
        "Check --gpus-per-node and CUDA_VISIBLE_DEVICES; leave NCCL variables to rankcall.",
        code="RUN043",
        kind="configuration",
    ),
    _trouble(
        "nccl-error",
        r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|unhandled (?:system|cuda) error|"
        r"NCCL communicator was aborted|NCCL error in:",
        "NCCL failed; its own warnings in the log say where.",
        "Run `rankcall preflight`; set NCCL_DEBUG=INFO in the job's environment to see more.",
        code="RUN043",
        kind="network",
    ),
    _trouble(
        "nccl-retries",
        r"Call to connect(?: to \S+)? returned .*,? ?retrying|connect to \S+ returned .* retrying",
        "NCCL had to try again to reach a peer's ephemeral port.",
        "Open all high ports between the replicas, not 29500 alone.",
        code="RUN043",
        kind="network",
        mild=True,
    ),
    _trouble(
        "device-unknown",
        r"as device used by this process is currently unknown",
        "A rank met a barrier before it was bound to a GPU.",
        "Update torch and Axolotl; if it hangs there, the ranks share a GPU.",
        code="RUN043",
        kind="configuration",
        mild=True,
    ),
    _trouble(
        "gloo-timeout",
        r"Timed out waiting \d+ms for (?:recv|send)|\[gloo\].*[Tt]imed out|"
        r"Application timeout caused pair closure|monitoredBarrier.*(?:timed out|failed to)",
        "A rank waited for another until its time was over.",
        "Look at the rank that lags behind: its stack and log say what it waits for.",
        code="RUN053",
        kind="network",
    ),
    _trouble(
        "store-timeout",
        r"(?:wait|Wait) timeout after \d+ms|Socket Timeout|DistStoreError|"
        r"Timed out after \d+ seconds waiting for clients",
        "Not every rank came to the rendezvous in time.",
        "See which rank's log ends before it; its replica was slow to start or could not reach rank 0.",
        code="RUN042",
        kind="network",
    ),
)
