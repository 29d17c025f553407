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
        what="Training ended well, but the output folder of rank 0 holds no model or adapter.",
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
)
