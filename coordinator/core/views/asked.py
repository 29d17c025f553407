"""What users send: submissions, preflights, and a token to sign in with."""

from __future__ import annotations

from pydantic import Field

from coordinator.core.protocol import BundleFile
from coordinator.core.views.base import Input


class Deadlines(Input):
    """How long each stage may take, in seconds. Training has none: the watchdog judges it.

    The defaults are judgements: a container image takes up to two hours to be pulled everywhere; a healthy
    handshake takes seconds; tokenising a large dataset takes most of an hour but always shows progress.
    `train_quiet_s`: for how long no rank must have worked before a training counts as hung; 0: it is never ended for it.
    """

    gather_s: float = Field(default=7200, gt=0)
    match_s: float = Field(default=30, gt=0)
    tcp_s: float = Field(default=30, gt=0)
    collective_s: float = Field(default=60, gt=0)
    prepare_s: float = Field(default=3600, gt=0)
    prepare_idle_s: float = Field(default=600, gt=0)
    train_quiet_s: float = Field(default=40, ge=0)
    collect_s: float = Field(default=1800, gt=0)
    compare_s: float = Field(default=600, gt=0)


class SubmittedFile(Input):
    """A configuration file that came with the submission, as text."""

    name: str = Field(min_length=1, max_length=255)
    text: str = Field(max_length=4 << 20)


class Submission(Input):
    """`POST /jobs`: an Axolotl config and what else a job needs.

    Attributes:
        config: the Axolotl YAML as text; `config_name` its file name, for findings.
        overrides: `key=value` or `a.b=value`, applied to the config in order.
        nodes: replicas to train on; None: as many as the deployment has.
        gpus_per_node: GPUs of each to use; None: as many as each has; 0: train on the CPU.
        files: what the config names relative to its folder (datasets, DeepSpeed JSON, a small local model).
        accelerate, deepspeed: files of the user's own; topology is taken from rankcall all the same.
        allow: codes of blocking findings to go on in spite of.
    """

    name: str | None = Field(default=None, max_length=128)
    config: str = Field(max_length=4 << 20)
    config_name: str = Field(default="config.yml", max_length=255)
    overrides: tuple[str, ...] = Field(default=(), max_length=256)
    nodes: int | None = Field(default=None, ge=1, le=4096)
    gpus_per_node: int | None = Field(default=None, ge=0, le=64)
    prompts: tuple[str, ...] = Field(default=(), max_length=64)
    files: tuple[BundleFile, ...] = Field(default=(), max_length=1024)
    accelerate: SubmittedFile | None = None
    deepspeed: SubmittedFile | None = None
    deadlines: Deadlines = Deadlines()
    max_attempts: int = Field(default=1, ge=1, le=20)
    allow: tuple[str, ...] = ()


class PreflightRequest(Input):
    """`POST /preflights`: the handshake by itself, on the replicas a job would get.

    Attributes:
        nodes: replicas to test; None: as many as the deployment has.
        gpus_per_node: GPUs of each to test with; None: as many as each has; 0: on the CPU.
        allow: codes of blocking findings to go on in spite of.
    """

    nodes: int | None = Field(default=None, ge=1, le=4096)
    gpus_per_node: int | None = Field(default=None, ge=0, le=64)
    deadlines: Deadlines = Deadlines()
    allow: tuple[str, ...] = Field(default=(), max_length=256)


class SignIn(Input):
    """`POST /session`: a token turned into a browser session."""

    token: str = Field(min_length=1, max_length=4096)
