"""A submission made from files and options, for `submit`, `check` and `render`."""

from __future__ import annotations

import contextlib
import difflib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.cli.bundle import Reference, collect, near_names, survey
from coordinator.cli.exits import Exit, Stop
from coordinator.core.regular import read_regular
from coordinator.core.words import size

if TYPE_CHECKING:
    from coordinator.checks import Purpose
    from coordinator.core.protocol import Finding
    from coordinator.core.views import CheckVerdict, Deadlines, Submission, SubmittedFile


# As much as a submission takes of each (`core/views/asked.py`).
LIMIT_TEXT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line that make a submission."""

    config: Path
    overrides: tuple[str, ...] = ()
    nodes: int | None = None
    gpus_per_node: int | None = None
    name: str | None = None
    prompts: tuple[str, ...] = ()
    prompts_file: Path | None = None
    accelerate: Path | None = None
    deepspeed: Path | None = None
    attempts: int = 1
    allow: tuple[str, ...] = ()
    deadlines: tuple[str, ...] = ()


def build(asked: Asked) -> Submission:
    """The submission with the files it names, checked here before anything is sent.

    Raises:
        Stop: naming the file, key or option that cannot be used; with the findings where the check refuses it.
    """
    bare = read(asked)
    stop_if_refused(asked, judge(asked, bare), "sent")
    files = collect(asked.config.parent, _effective(asked, bare.config), _of_accelerate(bare.accelerate))
    return bare.model_copy(update={"files": files})


def stop_if_refused(asked: Asked, verdict: CheckVerdict, done: str) -> None:
    """
    Args:
        done: what is not done then ("sent").

    Raises:
        Stop: with what is wrong.
    """
    if verdict.verdict == "reject":
        raise Stop(
            Exit.FAILED,
            f"{asked.config} is refused; nothing was {done}.",
            hint="`rankcall explain CODE` says more; --allow CODE goes on in spite of one.",
            findings=verdict.findings,
        )


def with_settings(asked: Asked) -> Submission:
    """The submission with the DeepSpeed files it names, which is all that is rendered from what lies beside a config.

    Raises:
        Stop: naming the file, key or option that cannot be used.
    """
    bare = read(asked)
    named = {key: value for key, value in _effective(asked, bare.config).items() if key == "deepspeed"}
    files = collect(asked.config.parent, named, _of_accelerate(bare.accelerate))
    return bare.model_copy(update={"files": files})


def judge(asked: Asked, submission: Submission) -> CheckVerdict:
    """What is said of a submission whose files lie in the config's folder, and travel with it."""
    from coordinator.checks import verdict

    said = rules_of(asked, submission)
    return verdict((*said.findings, *burden(asked, submission, "submit")), submission.allow)


def rules_of(asked: Asked, submission: Submission) -> CheckVerdict:
    """What the rules say of a submission whose files lie in the config's folder."""
    from coordinator.checks import FolderFiles, check

    return check(submission, files=FolderFiles(asked.config.parent), purpose="submit")


def burden(asked: Asked, submission: Submission, purpose: Purpose) -> tuple[Finding, ...]:
    """Why the files that a config names cannot travel with it, as far as no rule sees it: too much (CFG026), and links
    that lead out of the config's folder (CFG025: a `check` only warns of that, as the rule does)."""
    from coordinator.core import yaml
    from coordinator.core.overrides import OverrideError, apply_overrides

    try:
        document = yaml.read(submission.config, submission.config_name)
        config = apply_overrides(document.values, submission.overrides)
    except (yaml.YamlError, OverrideError):
        return ()
    named = _carried(config, asked)
    seen = survey(asked.config.parent, named, _of_accelerate(submission.accelerate), name=document.name)
    return tuple(
        one.model_copy(
            update={
                "line": document.line(*(one.key or "").split(".")),
                "severity": "warning" if one.code == "CFG025" and purpose == "check" else "error",
            }
        )
        for one in seen.findings
        if one.code == "CFG026" or (one.code == "CFG025" and not _climbs(str(one.evidence["path"])))
    )


def _climbs(path: str) -> bool:
    """Out of the folder as it is written: a rule has that."""
    return posixpath.normpath(path).startswith("..")


def read(asked: Asked) -> Submission:
    """The submission without the files it names.

    Raises:
        Stop: naming the file or option that cannot be used.
    """
    from pydantic import ValidationError

    from coordinator.core.views import Submission

    _refuse_codes(asked.allow)
    text = read_text(asked.config, "config")
    _refuse_overrides(asked, text)
    try:
        return Submission(
            name=asked.name,
            config=text,
            config_name=asked.config.name,
            overrides=asked.overrides,
            nodes=asked.nodes,
            gpus_per_node=asked.gpus_per_node,
            prompts=(*asked.prompts, *_prompts(asked.prompts_file)),
            accelerate=_submitted(asked.accelerate, "--accelerate"),
            deepspeed=_submitted(asked.deepspeed, "--deepspeed"),
            max_attempts=asked.attempts,
            allow=asked.allow,
            deadlines=deadlines(asked.deadlines),
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Stop(Exit.USAGE, f"{place}: {first['msg']}.") from None


def _refuse_codes(codes: Sequence[str]) -> None:
    from coordinator.core.catalogue import CODES

    for code in codes:
        if code not in CODES:
            near = difflib.get_close_matches(code.upper(), CODES, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]}?" if near else "`rankcall explain --all` lists those there are."
            raise Stop(Exit.USAGE, f"--allow {code!r}: there is no such finding.", hint=hint)


def _refuse_overrides(asked: Asked, text: str) -> None:
    """An override that cannot be applied is the command line's fault; a config that cannot be read is the check's to say."""
    from coordinator.core import yaml

    if asked.overrides:
        with contextlib.suppress(yaml.YamlError):
            _overridden(yaml.load(text, asked.config.name), asked.overrides)


def _overridden(config: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    from coordinator.core.overrides import OverrideError, apply_overrides

    try:
        return apply_overrides(config, overrides)
    except OverrideError as error:
        raise Stop(Exit.USAGE, f"--set {error.override!r}: {error.problem}.") from None


def _effective(asked: Asked, text: str) -> Mapping[str, object]:
    """The config with its overrides: paths may come from either."""
    from coordinator.core import yaml

    try:
        config = _overridden(yaml.load(text, asked.config.name), asked.overrides)
    except yaml.YamlError as error:
        shown = f"\n    {error.text}" if error.text else ""
        raise Stop(Exit.FAILED, f"{error}{shown}") from None
    return _carried(config, asked)


def _carried(config: Mapping[str, object], asked: Asked) -> Mapping[str, object]:
    """What may name files that travel: where a DeepSpeed file is brought, rankcall puts that one in both places."""
    return {key: value for key, value in config.items() if key != "deepspeed" or asked.deepspeed is None}


def _of_accelerate(accelerate: SubmittedFile | None) -> tuple[Reference, ...]:
    """The DeepSpeed file an accelerate file names. A file that does not parse is the check's to judge."""
    from coordinator.core import yaml

    if accelerate is None:
        return ()
    try:
        values = yaml.load(accelerate.text, accelerate.name)
    except yaml.YamlError:
        return ()
    section = values.get("deepspeed_config")
    named = section.get("deepspeed_config_file") if isinstance(section, Mapping) else None
    key = f"{accelerate.name}: deepspeed_config.deepspeed_config_file"
    # As in the config itself: where there is no such file it may be one of Axolotl's presets.
    return (Reference(key, named, must_exist=False),) if isinstance(named, str) else ()


def read_text(path: Path, what: str) -> str:
    """The text of a file the user named.

    Raises:
        Stop: when it is not there (with near names), cannot be read, is endless, or is not UTF-8.
    """
    from coordinator.checks import decode

    try:
        data = read_regular(path, LIMIT_TEXT_BYTES)
    except FileNotFoundError:
        near = [str(path.parent / name) for name in near_names(path.parent, path.name)]
        hint = f"Did you mean {' or '.join(near)}?" if near else ""
        raise Stop(Exit.USAGE, f"There is no {what} file {path}.", hint=hint) from None
    except OSError as error:
        raise Stop(Exit.USAGE, f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > LIMIT_TEXT_BYTES:
        raise Stop(
            Exit.USAGE,
            f"{path} is larger than {size(LIMIT_TEXT_BYTES)}, the most that a {what} file may have.",
            hint="Is it the right file? A configuration has a few kilobytes.",
        )
    text = decode(path.name, data)
    if not isinstance(text, str):
        raise Stop(Exit.FAILED, f"{path} is refused.", findings=(text,))
    return text


def _submitted(path: Path | None, option: str) -> SubmittedFile | None:
    from coordinator.core.views import SubmittedFile

    return None if path is None else SubmittedFile(name=path.name, text=read_text(path, option))


def _prompts(path: Path | None) -> Sequence[str]:
    """One prompt per line, blank lines left out."""
    if path is None:
        return ()
    return [line.strip() for line in read_text(path, "--prompts-file").splitlines() if line.strip()]


def deadlines(settings: Sequence[str]) -> Deadlines:
    """`gather=10m` and the like.

    Raises:
        Stop: for what is no stage or no time.
    """
    from pydantic import ValidationError

    from coordinator.core.views import Deadlines

    values: dict[str, float] = {}
    for setting in settings:
        stage, _, text = setting.partition("=")
        key = f"{stage.strip().replace('-', '_')}_s"
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
        if key not in Deadlines.model_fields or match is None:
            known = ", ".join(name.removesuffix("_s") for name in Deadlines.model_fields)
            raise Stop(
                Exit.USAGE,
                f"--deadline {setting}: write STAGE=TIME, such as gather=10m.",
                hint=f"Stages with a deadline: {known}.",
            )
        values[key] = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    try:
        return Deadlines(**values)
    except ValidationError as error:
        raise Stop(Exit.USAGE, f"--deadline: {error.errors()[0]['msg']}.") from None
