"""`RUN…`: codes about training, its processes and its result."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Stage

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="RUN001",
        title="A process of the job failed",
        severity="error",
        what="The process of this stage ended with an exit code other than 0, or by a signal, on the rank named.",
        why="A distributed training cannot go on without one of its ranks; the other ranks were ended too.",
        fix="Read the last lines of that rank's log (in the evidence, or `rankcall logs ID --rank R`).",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN002",
        title="The ranks have different data",
        severity="error",
        what="The prepared data, or the number of steps or batches made from it, differs between replicas.",
        why="Each rank would take another number of steps; the longer ones wait for ever in a collective that "
        "the shorter ones never enter.",
        fix="Give every replica the same dataset: send it with the submission, or put it on a shared volume.",
        stage=Stage.PREPARE,
    ),
    Entry(
        code="RUN003",
        title="A machine trains alone",
        severity="error",
        what="From inside the training, the world has fewer ranks than the job has.",
        why="The launcher did not join the machines: each would train its own model to exit code 0.",
        fix="Leave topology to rankcall: remove launcher and distributed settings of your own from the submission.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN004",
        title="A rank never said that it trained",
        severity="error",
        what="All processes ended with exit code 0, but no progress record came from the rank named.",
        why="Without it nobody knows whether that rank took part, so success cannot be claimed.",
        fix="Check that the training's Python can import rankcall's `agent.plugin`, and that the config's `plugins` "
        "still name it.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN005",
        title="No model was found",
        severity="error",
        what="Training ended well, but the output folder of rank 0 holds no model or adapter that this attempt has saved.",
        why="There is nothing to hand over.",
        fix="Look at `output_dir` in the config and at the end of rank 0's log for what was saved where.",
        stage=Stage.COLLECT,
    ),
    Entry(
        code="RUN006",
        title="The saved model is empty",
        severity="error",
        what="The safetensors header of the saved model names tensors whose shape holds a zero.",
        why="Under ZeRO-3 the weights are spread over the ranks; saved without being gathered, they are lost.",
        fix="Name the ZeRO-3 file in the Axolotl config's `deepspeed:` too, with "
        "`stage3_gather_16bit_weights_on_model_save: true`; the last checkpoint may still be whole.",
        stage=Stage.COLLECT,
    ),
    Entry(
        code="RUN007",
        title="The models could not be compared",
        severity="warning",
        what="Answering the job's prompts with the base and the tuned model failed or took too long.",
        why="Only the comparison is missing; the trained model was collected and verified before.",
        fix="Read `compare.log` of rank 0; compare by hand if you need it.",
        stage=Stage.COMPARE,
    ),
    Entry(
        code="RUN020",
        title="The rendezvous port was taken in the meantime",
        severity="error",
        what="When rank 0 was to start the training, another process listened on the port all ranks had agreed on.",
        why="The training could not bind it: rank 0 would fail after half a minute, and the others wait for it.",
        fix="End that process, or retry: the next attempt agrees on a port that is free.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN021",
        title="A process said nothing for too long",
        severity="error",
        what="The output of this stage's process has not grown for as long as it may be silent, so it was ended.",
        why="Preparing data shows its progress all the time; silence means that it waits for something that does not come.",
        fix="Read the last lines of its log: a download that stands still, a lock held by another process, a full disk.",
    ),
    Entry(
        code="RUN022",
        title="A process was lost",
        severity="error",
        what="A process of the job is gone and nobody kept its exit code: its shim was killed, or the container restarted.",
        why="Whether it did its work cannot be known, so it counts as failed; whatever was left of it was ended.",
        fix="See whether the container was restarted or ran out of memory (the platform's events); then retry the job.",
    ),
    Entry(
        code="RUN023",
        title="A file of the result is damaged",
        severity="error",
        what="A file of the saved model is cut short, does not agree with its own header, or is missing.",
        why="It cannot be loaded; the disk was full or the process was ended while it saved.",
        fix="Free disk space on rank 0 and retry; an earlier checkpoint in the output folder may be whole.",
        stage=Stage.COLLECT,
    ),
    Entry(
        code="RUN024",
        title="A process could not be started",
        severity="error",
        what="The operating system refused to start the command of this stage on the replica.",
        why="The interpreter is not there, may not be executed, or there is no memory or process left.",
        fix="Check RANKCALL_PYTHON and that the training environment is installed in the image of every replica.",
    ),
    Entry(
        code="RUN025",
        title="The job's files could not be put in place",
        severity="error",
        what="A rendered file or the submission's bundle arrived damaged, has a path that leads out of its folder, "
        "or could not be written.",
        why="A process must not start with files other than those that were checked.",
        fix="Look at the message: free disk space in the state folder, or remove links from it; then retry.",
    ),
    Entry(
        code="RUN026",
        title="The agent failed at a task",
        severity="error",
        what="The agent of a replica met an error that it was not made for.",
        why="The task has no result; the message says what went wrong.",
        fix="Retry the job; if it happens again, report it with the agent's log of that replica.",
    ),
    Entry(
        code="RUN027",
        title="A replica was shut down",
        severity="error",
        what="`rankcall up` or the agent of this replica was asked to end (SIGTERM or Ctrl-C) while it worked on the job, "
        "and ended its part of it.",
        why="The container is being stopped or moved, or somebody interrupted it; the other ranks cannot go on alone.",
        fix="Start the replica again and retry the job.",
    ),
    Entry(
        code="RUN028",
        title="Output was dropped on a full disk",
        severity="warning",
        what="The disk that holds RANKCALL_STATE_DIR had no room left for the output of a process, so some was dropped. "
        "The log says where, and how much.",
        why="The process goes on: a training that dies because its log cannot be written loses more than the log.",
        fix="Free space there, or set RANKCALL_STATE_DIR to a larger disk; save fewer checkpoints (`save_total_limit`).",
    ),
    Entry(
        code="RUN029",
        title="Files from before were left aside",
        severity="note",
        what="The output folder holds files that lay there before this attempt began and that it has not written anew.",
        why="They are of an earlier attempt, or of another training: handed out as part of this result, they would be taken "
        "for what was trained now.",
        fix="Nothing; remove them, or give each job an output_dir of its own.",
        stage=Stage.COLLECT,
    ),
    Entry(
        code="RUN030",
        title="The training hangs",
        severity="error",
        what="No rank has worked or made a step for as long as a healthy training never pauses: no CPU, disk or "
        "network, or GPUs that spin without a step. The message names who is behind and what it does.",
        why="Every rank waits for another one; nothing would ever come of it, and torch itself gives up after 10 to 30"
        " minutes only.",
        fix="Read which rank is behind and where; its sockets and stacks are in the evidence. A link that was dropped "
        "or a stopped container is cured by another attempt; the same rank hanging at the same place again is a "
        "fault of its own.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN031",
        title="The training stands still",
        severity="warning",
        what="No step has been made for much longer than usual, although a rank still works; or the training works "
        "without a word for half an hour.",
        why="It may be a long compilation or a slow disk, or a loop that never ends.",
        fix="Look at the rank that is named: its log, and what it reads or computes.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN032",
        title="The training has become slow",
        severity="warning",
        what="For a minute, a step has taken at least twice as long as it did before.",
        why="Every rank goes at the pace of the slowest: one that is starved, throttled or behind a slow link holds "
        "all of them up.",
        fix="Compare CPU, GPU clocks, temperature and traffic of the ranks; look for another process on the slow one.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN033",
        title="What held the ranks up was transient",
        severity="note",
        what="After a training hung or lost its peers, every link and three collectives among the same replicas passed.",
        why="Nothing lasting is wrong between them: another attempt, or `rankcall retry`, goes on from the newest checkpoint.",
        fix="Nothing, if it does not come again. If it does, compare which rank was behind, and where.",
        stage=Stage.COLLECTIVE,
    ),
    Entry(
        code="RUN034",
        title="The fault is reproducible",
        severity="error",
        what="What ended a training fails again when only links and collective are tested, or the training hangs at the same "
        "place again although they pass. The message names the stage and the link, or the rank.",
        why="Another attempt would end alike, so none is made.",
        fix="Replace the replica or mend the link that is named; where it is the training itself, read the stacks in "
        "`rankcall logs ID --stream evidence.stacks`.",
        stage=Stage.COLLECTIVE,
    ),
    Entry(
        code="RUN035",
        title="Whether the fault was transient is unknown",
        severity="warning",
        what="After a training hung or lost its peers, the links could not be tested among the same replicas, or passed "
        "only at the second try.",
        why="Nothing is claimed without evidence.",
        fix="`rankcall preflight` tests the links once more when all replicas are there.",
        stage=Stage.COLLECTIVE,
    ),
    Entry(
        code="RUN036",
        title="The training starts anew",
        severity="warning",
        what="Checkpoints were written before, but none is whole on every replica, so a further attempt begins at step 0.",
        why="Each rank reads its own disk; one without the checkpoint would end the attempt, and one with another step "
        "would hang it. A spare that replaced a lost replica has none; under FSDP, and in an absolute output_dir that is "
        "not shared, only some replicas have all files.",
        fix="Put output_dir on a volume that all replicas share, or save more often; what was whole on one replica is kept "
        "there as `before-attempt-N-checkpoint-…`.",
        stage=Stage.PREPARE,
    ),
    Entry(
        code="RUN037",
        title="A replica was replaced",
        severity="note",
        what="A replica of the attempt before did not come back in time, and a spare took its rank.",
        why="A job waits half a minute for a replica that was lost, for its disk holds checkpoints, and not for ever.",
        fix="Nothing; start the lost replica again to have a spare.",
        stage=Stage.GATHER,
    ),
    Entry(
        code="RUN038",
        title="The training goes on from a checkpoint",
        severity="note",
        what="A further attempt resumes from the newest checkpoint that is whole on every replica.",
        why="No step is lost that was saved everywhere; later checkpoints that are not whole are made anew.",
        fix="Nothing.",
        stage=Stage.PREPARE,
    ),
    Entry(
        code="RUN039",
        title="A hang was ended without the coordinator",
        severity="error",
        what="The coordinator did not answer for five minutes, and in all that time no rank of this replica made a step or "
        "worked, although steps were usual; so its agent gathered evidence and ended the training here.",
        why="A hang that nobody ends costs GPU hours until somebody looks.",
        fix="See why the coordinator was away; the evidence is in `rankcall logs ID --stream evidence.judgement` and its "
        "siblings.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN040",
        title="The GPU's memory did not suffice",
        severity="error",
        what="A rank's log says that CUDA, cuBLAS or cuDNN could not get memory on the GPU.",
        why="Model, optimizer, activations and the batch together are larger than the GPU; or another process holds "
        "part of it.",
        fix="Lower micro_batch_size or sequence_len, turn gradient_checkpointing on, or take a higher ZeRO stage.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN041",
        title="The replica's memory did not suffice",
        severity="error",
        what="A process could not get memory of the machine, or a data loader's worker was killed.",
        why="The container has a limit that the kernel enforces by killing; /dev/shm has one of its own.",
        fix="Give the container more memory and a larger /dev/shm, or lower dataset_num_proc and "
        "dataloader_num_workers.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN042",
        title="The ranks did not find each other",
        severity="error",
        what="The rendezvous failed: its port was taken, an address or name could not be reached, or not every rank "
        "came in time.",
        why="The training begins with all ranks meeting at rank 0; one that is missing stops all.",
        fix="Look at the tcp and collective stages, and at which rank's log ends before the meeting; then retry.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN043",
        title="NCCL failed",
        severity="error",
        what="A rank's log holds a warning or error of NCCL with a cause that is known.",
        why="All traffic between GPUs goes through NCCL: interface, ports, shared memory, locked memory and versions "
        "have to fit.",
        fix="Do what the message says; `rankcall preflight` tests the same path without the training.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN044",
        title="A GPU cannot be used",
        severity="error",
        what="The log says that there is no GPU, that this torch was not built for it, that the driver is too old, or "
        "that the hardware failed.",
        why="Nothing can be trained on it as it is.",
        fix="Take an image that fits the GPU and the driver, or another replica.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN045",
        title="The model hub refused or was not reached",
        severity="error",
        what="A download of a model or dataset was refused, not found, slowed down, or the hub could not be reached.",
        why="Every rank asks the hub: a token, a licence or a way out that one replica lacks stops all.",
        fix="Set HF_TOKEN on every replica, accept the model's terms, check the name; or share a cache.",
    ),
    Entry(
        code="RUN046",
        title="The disk is full",
        severity="error",
        what="A file could not be written, or no more files could be opened.",
        why="Checkpoints with the optimizer's state are several times the model; each replica keeps its own.",
        fix="Free space under output_dir and HF_HOME, set save_total_limit, raise `ulimit -n`.",
    ),
    Entry(
        code="RUN047",
        title="A checkpoint does not fit",
        severity="error",
        what="The checkpoint to resume from, or the weights to load, are missing, incomplete, or of another shape or "
        "number of ranks.",
        why="ZeRO writes one shard a rank, each to its own replica's disk; only the same layout can read them.",
        fix="Resume on the same replicas with the same number of GPUs, or start anew without resume_from_checkpoint.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN048",
        title="The training refused its configuration",
        severity="error",
        what="Axolotl, accelerate or DeepSpeed ended with an error about a setting.",
        why="The settings contradict each other, or the hardware; trying again gives the same answer.",
        fix="Change the key that the message names; `rankcall check CONFIG` finds most of these before any GPU is "
        "used.",
    ),
    Entry(
        code="RUN049",
        title="The loss is not a number",
        severity="error",
        what="The loss became infinite or NaN and stayed so, or fp16's scale reached its minimum. The message names the rank "
        "and the step.",
        why="From there on the model learns nothing, whatever the later steps say (the trainer's own log leaves such losses "
        "out of its averages). The training is ended; checkpoints from then on are not resumed from.",
        fix="Train in bf16, lower the learning rate, and look for empty or overlong samples.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN050",
        title="The data could not be used",
        severity="error",
        what="A dataset could not be read, has fields or tokens that do not fit, or lies on a file system that failed.",
        why="Without the same readable data on every rank there is nothing to train on.",
        fix="Check datasets' path, type and field names; put caches on the container's own disk.",
    ),
    Entry(
        code="RUN051",
        title="Something is missing in the training environment",
        severity="error",
        what="A package, library, compiler, file or permission that the training needs is not there on this replica.",
        why="The image or the mounts differ from what the configuration expects.",
        fix="Install or mount it on every replica at the same place.",
    ),
    Entry(
        code="RUN053",
        title="A collective was not joined in time",
        severity="error",
        what="A rank gave up waiting in a collective: another one never came to it.",
        why="The rank that gives up is not the one at fault: the one it waited for is.",
        fix="Look at the rank with the fewest steps and at its log; `rankcall preflight` tests the links.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN054",
        title="The training was ended from outside",
        severity="error",
        what="A process got a signal that nobody of rankcall's sent.",
        why="The container is being stopped, or a person or another program ended it.",
        fix="See the platform's events for this container; then retry.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN055",
        title="A process crashed in native code",
        severity="error",
        what="A process ended by a segmentation fault, an abort or an illegal instruction.",
        why="A compiled package, the driver or the hardware is at fault, not the configuration.",
        fix="Compare versions with a replica where it works; if it is always the same replica, replace it.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN056",
        title="A loss was not a number",
        severity="warning",
        what="A rank computed a loss that was NaN or infinite; later ones may be numbers again.",
        why="One batch without a single token to learn from does that, or a learning rate that is too high. The trainer's own "
        "log does not show it: it leaves such losses out of its averages.",
        fix="Look at the samples around that step; lower the learning rate if it comes again.",
        stage=Stage.TRAIN,
    ),
    Entry(
        code="RUN057",
        title="A rank holds the others up",
        severity="warning",
        what="For a minute, one rank has taken at least 1.3 times as long as the others for what it does by itself: getting "
        "its data and computing a batch forward. The message says what else differs on its replica.",
        why="Every step waits for the slowest rank: all GPUs idle for the difference.",
        fix="Heat or throttling: replace the replica. A busy CPU: end what else runs there. Data: put the dataset and its "
        "cache on the container's own disk.",
        stage=Stage.TRAIN,
    ),
)
