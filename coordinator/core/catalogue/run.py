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
)
