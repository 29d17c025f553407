"""Error lines that training logs are known to hold, of the software: configuration, hub, data, checkpoints, packages.

From public failures of multi-node training (issues of accelerate, DeepSpeed, torch, NCCL, Axolotl). The special kinds
come before the general ones: the first that fits names the line. Read by `trouble.py`.
"""

from __future__ import annotations

from typing import Final

from coordinator.core.trouble_kind import Trouble
from coordinator.core.trouble_kind import kind_of_line as _trouble

STACK: Final[tuple[Trouble, ...]] = (
    _trouble(
        "accelerate-collision",
        r"the following accelerate config variables will be ignored|When using `deepspeed_config_file`",
        "Keys of the accelerate file collide with its deepspeed_config_file.",
        "Keep only deepspeed_config_file, zero3_init_flag and the launcher under deepspeed_config.",
        code="RUN048",
        kind="configuration",
    ),
    _trouble(
        "deepspeed-batch",
        r"Check batch related parameters\. train_batch_size is not equal",
        "The batch sizes in the DeepSpeed JSON do not fit this world size.",
        'Write "auto" for train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps.',
        code="RUN048",
        kind="configuration",
    ),
    _trouble(
        "deepspeed-op",
        r"cpu_adam (cuda )?is missing|Unable to JIT load the|Error building extension|CUDAMismatchException|"
        r"CUDA_HOME does not exist",
        "DeepSpeed could not compile one of its operators.",
        "Turn offload_optimizer off in the DeepSpeed JSON, or install a compiler and the CUDA toolkit of torch.",
        code="RUN051",
        kind="configuration",
    ),
    _trouble(
        "loss-scale",
        r"Current loss scale already at minimum",
        "fp16 overflowed again and again: the loss is not finite any more.",
        "Train in bf16, or lower the learning rate.",
        code="RUN049",
        kind="configuration",
    ),
    _trouble(
        "hub-rate-limit",
        r"429 Client Error|Too Many Requests",
        "The model hub refused so many requests.",
        "Let the prepare stage download once (a shared HF_HOME), and set HF_TOKEN.",
        code="RUN045",
        kind="network",
        mild=True,
    ),
    _trouble(
        "hub-gated",
        r"Cannot access gated repo|GatedRepoError|You must be authenticated|401 Client Error",
        "The model or dataset is gated and the token does not open it.",
        "Accept its terms on the hub, and set HF_TOKEN on every replica.",
        code="RUN045",
        kind="configuration",
    ),
    _trouble(
        "disk-full",
        # torch loses the error number: all that it says of a full disk is where its writer stands, and where it should
        r"No space left on device|PytorchStreamWriter failed writing file|Disk quota exceeded|"
        r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+|iostream error",
        "The disk is full.",
        "Free space under output_dir and HF_HOME; set save_total_limit.",
        code="RUN046",
        kind="resources",
    ),
    _trouble(
        "missing-checkpoint",
        r"Can't find a valid checkpoint|zero checkpoints paths are missing",
        "This replica does not have the checkpoint, or only its part of it.",
        "Put output_dir on a shared volume, or start without resume_from_checkpoint.",
        code="RUN047",
        kind="configuration",
    ),
    _trouble(
        "empty-shards",
        r"copying a param with shape torch\.Size\(\[0\]\)",
        "The saved model holds empty tensors: ZeRO-3 was not gathered when it was saved.",
        "Name the ZeRO-3 file in Axolotl's deepspeed: too; the last checkpoint may be whole.",
        code="RUN047",
        kind="configuration",
    ),
    _trouble(
        "stale-file-handle",
        r"Stale file handle",
        "A cache on a network file system vanished under the training.",
        "Put TRITON_CACHE_DIR and HF_DATASETS_CACHE on the container's own disk.",
        code="RUN050",
        kind="network",
    ),
    _trouble(
        "hub-missing",
        r"RepositoryNotFoundError|RevisionNotFoundError|404 Client Error|"
        r"is not a local folder and is not a valid model identifier|EntryNotFoundError: 404",
        "The hub has no model or dataset of that name, or the token may not see it.",
        "Check base_model and datasets' path for typos; set HF_TOKEN where it is private.",
        code="RUN045",
        kind="configuration",
    ),
    _trouble(
        "hub-unreachable",
        r"LocalEntryNotFoundError|HTTPSConnectionPool\(host='huggingface|MaxRetryError|OfflineModeIsEnabled|couldn't connect to '?https://huggingface|ConnectTimeout",
        "The model hub could not be reached from this replica.",
        "Check its way out to the internet, or its HF_ENDPOINT; or put the model at the same path on every replica.",
        code="RUN045",
        kind="network",
    ),
    _trouble(
        "file-lock",
        r"filelock.*Timeout|The file lock .* could not be acquired|No locks available|OSError: \[Errno 37\]",
        "A lock file on a shared file system could not be had.",
        "Put HF_HOME and dataset_prepared_path on the container's own disk; a network disk may not support locks.",
        code="RUN050",
        kind="network",
    ),
    _trouble(
        "shards-differ",
        r"different (?:number of|world size)|DP world size changed|rng_state_\d+\.pth|"
        r"ZeROCheckpoint.*mismatch|loading a checkpoint .*world size",
        "The checkpoint was written by another number of ranks, or by another stack.",
        "Resume with the same replicas and GPUs and the same versions, or start without resume_from_checkpoint.",
        code="RUN047",
        kind="configuration",
    ),
    _trouble(
        "weights-differ",
        r"size mismatch for |Error\(s\) in loading state_dict|SafetensorError|"
        r"HeaderTooLarge|MetadataIncompleteBuffer",
        "Saved weights do not fit the model, or their file is damaged.",
        "Check that base model and checkpoint or adapter belong together; fetch the file anew.",
        code="RUN047",
        kind="configuration",
    ),
    _trouble(
        "data-invalid",
        r"DatasetGenerationError|DataFilesNotFoundError|EmptyDatasetError|"
        r"Invalid field in (?:data|dataset)|ArrowInvalid|No samples left|"
        r"dataset is empty|unhandled prompt tokenization strategy",
        "The dataset could not be read, or has no usable samples.",
        "Check datasets' path, type and field names against the first lines of the file.",
        code="RUN050",
        kind="configuration",
    ),
    _trouble(
        "loss-not-finite",
        r"'loss': '?(?:nan|inf)\b|[Ll]oss is (?:nan|inf|NaN)|non-?finite (?:loss|gradient)|"
        r"returned nan values",
        "The loss is not a number any more.",
        "Lower the learning rate, train in bf16, and look for empty or overlong samples.",
        code="RUN049",
        kind="configuration",
        mild=True,
    ),
    _trouble(
        "too-many-files",
        r"Too many open files|\[Errno 24\]",
        "The limit of open files was reached.",
        "Raise `ulimit -n` of the container, or lower dataloader_num_workers.",
        code="RUN046",
        kind="configuration",
    ),
    _trouble(
        "no-permission",
        r"PermissionError: \[Errno 13\]|Read-only file system",
        "The training may not write or read a path.",
        "Check output_dir, HF_HOME and dataset_prepared_path against the container's user and mounts.",
        code="RUN051",
        kind="configuration",
    ),
    _trouble(
        "library-broken",
        r"undefined symbol: |cannot open shared object file|GLIBCXX_\S+' not found",
        "A compiled package does not fit the torch or system it was installed beside.",
        "Install the packages of the training environment together, for one torch and one CUDA.",
        code="RUN051",
        kind="configuration",
    ),
    _trouble(
        "signalled",
        r"Received \d+ death signal|SignalException: Process \d+ got signal|Received (?:1|15) death",
        "The training was ended by a signal from outside: a console that closed, or a container that was stopped.",
        "Start the training through rankcall, whose shim no console reaches; see whether the platform stopped the container.",
        code="RUN054",
        kind="replica",
        mild=True,
    ),
    _trouble(
        "crashed",
        r"Fatal Python error: |exitcode\s*: -(?:11|6|7|4)\b|Signal (?:11|6|7|4) \(SIG\w+\)|Segmentation fault",
        "A process of the training crashed in native code.",
        "Look at the lines before it in the log; compare versions of torch, CUDA and compiled packages with a healthy replica's.",
        code="RUN055",
        kind="replica",
        mild=True,
    ),
    _trouble(
        "missing-module",
        r"ModuleNotFoundError: No module named",
        "A package is missing in the training environment.",
        "Install it in the image of every replica.",
        code="RUN051",
        kind="configuration",
    ),
    _trouble(
        "missing-file",
        r"FileNotFoundError:",
        "A file the training wants is not on this replica.",
        "Send it with the submission, or put it at the same path on every replica.",
        code="RUN051",
        kind="configuration",
    ),
    _trouble(
        "config-invalid",
        r"pydantic_core\._pydantic_core\.ValidationError|validation errors? for AxolotlInputConfig|"
        r"AxolotlConfigWCapabilities",
        "Axolotl refused the configuration.",
        "Read the lines below it: they name the key.",
        code="RUN048",
        kind="configuration",
    ),
    _trouble(
        "child-failed",
        r"ChildFailedError|torch\.distributed\.elastic.*failed \(exitcode",
        "A process of this replica ended with an error.",
        "The traceback says which.",
        echo=True,
    ),
    _trouble(
        "exception",
        r"^(?:\[rank\d+\]: ?)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)(?:: |$)",
        "The training raised an exception.",
        "Read the traceback.",
    ),
)
