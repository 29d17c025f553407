"""`ENV…`: codes about facts of replicas and how they match."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Severity, Stage


def _entry(code: str, title: str, severity: Severity, what: str, why: str, fix: str) -> Entry:
    return Entry(code=code, title=title, severity=severity, what=what, why=why, fix=fix, stage=Stage.MATCH)


def _version(code: str, package: str, why: str) -> Entry:
    return _entry(
        code,
        f"{package} differs between replicas",
        "error",
        f"Replicas have different versions of {package}. A difference in the first two numbers blocks, a smaller "
        "one is a warning.",
        why,
        f"Start all replicas from one image, or install one version of {package} everywhere.",
    )


ENTRIES: tuple[Entry, ...] = (
    _version("ENV001", "torch", "Its collectives and their order change between releases; ranks then hang."),
    _version(
        "ENV002", "NCCL", "NCCL supports one version in a communicator; two of them hang or crash in init."
    ),
    _version(
        "ENV003", "CUDA", "Kernels and NCCL are built for one CUDA; ranks then differ in what they can run."
    ),
    _version("ENV004", "accelerate", "The launcher's environment and the order of collectives come from it."),
    _version(
        "ENV005",
        "DeepSpeed",
        "ZeRO partitions states by its own rules; two versions exchange the wrong parts.",
    ),
    _version(
        "ENV006", "axolotl", "It decides batches, packing and steps; two versions train different things."
    ),
    _version(
        "ENV007",
        "transformers",
        "Model code and tokenisation come from it; two versions train different things.",
    ),
    _version("ENV008", "rankcall", "Agents of different releases may not understand each other's tasks."),
    _version("ENV009", "peft or datasets", "Adapters and batches are built by them."),
    _entry(
        "ENV010",
        "GPU models differ",
        "error",
        "Replicas have GPUs of different models or compute capability.",
        "Every step waits for the slowest GPU, the smallest memory limits all, and kernels chosen for one may not "
        "run on the other.",
        "Rent replicas of one GPU model.",
    ),
    _entry(
        "ENV011",
        "GPU counts differ",
        "error",
        "Replicas have different numbers of GPUs, and the job uses as many as each has.",
        "The launcher starts the same number of processes on each machine.",
        "Give `--gpus-per-node` the smallest number, or rent equal replicas.",
    ),
    _entry(
        "ENV012",
        "torch was not built for this GPU",
        "error",
        "The GPU's compute capability is not among the architectures torch was built for.",
        "No kernel runs ('no kernel image is available'); new GPUs need a new build (Blackwell: sm_120, CUDA 12.8).",
        "Use an image whose torch supports this GPU.",
    ),
    _entry(
        "ENV013",
        "A GPU cannot run a kernel",
        "error",
        "A small matrix product failed on this GPU.",
        "Driver and CUDA do not fit, the GPU has fallen off the bus, or its memory is exhausted.",
        "See the message; restart or replace the replica.",
    ),
    _entry(
        "ENV014",
        "Too few GPUs",
        "error",
        "The job wants more GPUs on each replica than this one has.",
        "The launcher would start processes that have no GPU.",
        "Lower `--gpus-per-node`, or rent replicas with more GPUs.",
    ),
    _entry(
        "ENV015",
        "GPU memory is in use",
        "warning",
        "Part of a GPU's memory is held before training starts.",
        "Training may run out of memory; often an earlier process was left behind.",
        "`nvidia-smi` names the processes; end those that should not be there.",
    ),
    _entry(
        "ENV016",
        "torch is missing",
        "error",
        "torch cannot be imported on this replica.",
        "Training needs it.",
        "Install the training stack (`pip install 'rankcall[train]'`), or point RANKCALL_PYTHON at its interpreter.",
    ),
    _entry(
        "ENV017",
        "Drivers differ",
        "warning",
        "Replicas have different NVIDIA drivers.",
        "It mostly works; if a collective crashes on one of them, this is the first suspect.",
        "Rent replicas on equal hosts where that is possible.",
    ),
    _entry(
        "ENV018",
        "Python differs",
        "warning",
        "Replicas run different minor releases of Python.",
        "Pickled objects and hashes may differ between ranks.",
        "Start all replicas from one image.",
    ),
    _entry(
        "ENV019",
        "Kernels or platforms differ",
        "note",
        "Replicas run on different kernels or platforms.",
        "It is harmless for most trainings; it shows that the hosts are not alike.",
        "Nothing needs to be done.",
    ),
    _entry(
        "ENV020",
        "Little disk is left",
        "warning",
        "A path that training writes to has little free space.",
        "A model, its checkpoints and the prepared data may not fit; a full disk ends the training at its end.",
        "Free some space, or point HF_HOME and the output folder at a larger volume.",
    ),
    _entry(
        "ENV021",
        "Shared memory is small",
        "warning",
        "Shared memory is smaller than data loaders and NCCL need between processes of one machine.",
        "It shows as 'Bus error' or as a failing NCCL init ('No space left on device').",
        "Give the container more shared memory (Docker `--shm-size=8g`, Kubernetes an emptyDir with medium Memory "
        "at /dev/shm, gcube sharedMemory).",
    ),
    _entry(
        "ENV022",
        "Locked memory is limited",
        "note",
        "The limit of locked memory (memlock) is low.",
        "InfiniBand registers memory and fails without it; TCP does not care.",
        "Where InfiniBand is used: `--ulimit memlock=-1`.",
    ),
    _entry(
        "ENV023",
        "Few open files are allowed",
        "warning",
        "The limit of open files is low.",
        "Data loaders and NCCL's sockets open many; the error is 'Too many open files', far into the training.",
        "Raise it: `ulimit -n 65536`, Docker `--ulimit nofile=65536`.",
    ),
    _entry(
        "ENV024",
        "Rank variables are left over",
        "note",
        "The container's environment sets variables that name a rank or a master.",
        "They would override what is agreed for the attempt; rankcall removes them from the training's environment.",
        "Nothing needs to be done; remove them from the image or the deployment to be rid of this note.",
    ),
    _entry(
        "ENV025",
        "Cache variables contradict each other",
        "note",
        "HF_HOME is set, and HF_HUB_CACHE or HF_DATASETS_CACHE (which win over it) point elsewhere.",
        "Models or datasets land on another disk than the one meant for them, often the small one of the container.",
        "Set all three to the volume you mean, or unset HF_HUB_CACHE and HF_DATASETS_CACHE.",
    ),
    _entry(
        "ENV026",
        "HTTP proxies are set",
        "note",
        "The environment names an HTTP proxy; a warning where NO_PROXY leaves out addresses of the peers.",
        "Downloads go through it. NCCL, gloo and rankcall go past it, but whatever else speaks HTTP from one replica to "
        "another would be caught by it.",
        "Add the peers' addresses, or their network (10.0.0.0/8), to NO_PROXY.",
    ),
    _entry(
        "ENV028",
        "Facts are missing",
        "warning",
        "Something about this replica could not be learned.",
        "What is not known cannot be compared.",
        "See the message.",
    ),
    _entry(
        "ENV029",
        "GPU memory differs",
        "warning",
        "GPUs of the replicas have different amounts of memory.",
        "The smallest limits the batch of all.",
        "Rent replicas of one GPU model.",
    ),
    _entry(
        "ENV030",
        "A clock is off",
        "note",
        "The replica's clock differs from the coordinator's by more than a few seconds.",
        "Nothing of rankcall or of the training compares clocks of two machines, but the times in this replica's logs "
        "are not those of the others.",
        "Where it matters, let the host run chrony or systemd-timesyncd; a container cannot set its clock.",
    ),
    _entry(
        "ENV031",
        "The container has settings for NCCL or gloo",
        "note",
        "The environment of the container sets NCCL_* or GLOO_* variables.",
        "rankcall derives these from the replica, but what the container says wins, in the handshake and in training: an "
        "interface named here is used though the peers may be reached by another.",
        "Unset what was meant for another machine; keep what you mean.",
    ),
    _entry(
        "ENV032",
        "Settings for NCCL differ",
        "warning",
        "A NCCL_* or GLOO_* variable has another value in one container than in another.",
        "Ranks that choose another transport or algorithm than their peers do not find each other, or hang in a collective.",
        "Give all replicas the same environment.",
    ),
    _entry(
        "ENV033",
        "InfiniBand is left unused",
        "note",
        "Some replicas have InfiniBand ports that are up, but they do not share a subnet with all, or cannot lock memory.",
        "NCCL uses TCP between all replicas then, which is slower.",
        "Rent replicas of one InfiniBand fabric with `ulimit -l unlimited`, or set NCCL_IB_DISABLE=0 in the containers "
        "to have NCCL look by itself.",
    ),
)
