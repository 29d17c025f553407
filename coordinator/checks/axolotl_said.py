"""What Axolotl and DeepSpeed said of a config, as findings at the config's keys: what no rule of ours has said. Pure.

Called by `deep.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from coordinator.checks.axolotl_process import Answer
from coordinator.checks.subject import DeepSpeedUse, Subject, items, shown
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, Severity

# Codes of rules that speak of the same keys as DeepSpeed's own refusals.
_ABOUT_DEEPSPEED = ("CFG203", "CFG204", "CFG219", "CFG220")
# `AxolotlConfigWCapabilities.check_bf16` only warns of it, because one may still merge there.
_FATAL = "training will fail"


def findings_of(
    subject: Subject, found: Sequence[Finding], answer: Answer, use: DeepSpeedUse | None
) -> tuple[Finding, ...]:
    """CFG901, CFG902, CFG903, CFG904.

    Args:
        found: what the rules have found.
        use: the DeepSpeed settings that were asked about.
    """
    said = [*_refusals(subject, found, answer), *_remarks(subject, found, answer)]
    if use is not None:
        said.extend(_deepspeed_refusals(subject, use, found, answer))
    if answer.unsure is not None:
        said.append(
            finding("CFG902", f"Axolotl could not say all: {shown(answer.unsure)}", severity="note", hint="")
        )
    return tuple(said)


def _refusals(subject: Subject, found: Sequence[Finding], answer: Answer) -> list[Finding]:
    """One finding for each key that Axolotl refuses and no rule has named."""
    by_place: dict[tuple[str, ...], list[str]] = {}
    for complaint in answer.errors:
        messages = by_place.setdefault(_place(subject, complaint.at), [])
        if complaint.message not in messages:
            messages.append(complaint.message)
    errors = [one for one in found if one.severity == "error"]
    theirs = _elsewhere(subject, answer)
    version = f" {answer.axolotl} (the replicas have {theirs})" if theirs else ""
    refused = []
    for place, messages in by_place.items():
        message = " · ".join(messages)[:500]
        if _already_said(errors, place, message):
            continue
        refused.append(
            subject.found(
                "CFG901",
                f"Axolotl{version}: {message}",
                *place,
                severity=_severity(subject, answer),
            )
        )
    return refused


def _deepspeed_refusals(
    subject: Subject, use: DeepSpeedUse, found: Sequence[Finding], answer: Answer
) -> list[Finding]:
    """One finding for each DeepSpeed setting that its own config class refuses and no rule has named."""
    named = {one.key for one in found if one.code in _ABOUT_DEEPSPEED and one.severity == "error" and one.key}
    refused = []
    for complaint in answer.deepspeed:
        key = ".".join(complaint.at)
        if any(one == key or one.endswith(f".{key}") for one in named) or (named and not complaint.at):
            continue
        refused.append(
            subject.found_in_deepspeed(use, "CFG904", f"DeepSpeed: {complaint.message[:500]}", *complaint.at)
        )
    return refused


def _already_said(errors: Sequence[Finding], place: tuple[str, ...], message: str) -> bool:
    """Whether a rule has said it, with the line and what to write."""
    if place:
        return any(one.key and one.key.split(".")[0] == place[0] for one in errors)
    words = set(re.findall(r"\w+", message))
    return any(one.key and words & set(one.key.split(".")) for one in errors) or any(
        words & set(re.findall(r"`(\w+)", one.message)) for one in errors
    )


def _place(subject: Subject, at: tuple[str, ...]) -> tuple[str, ...]:
    """pydantic's path without the names of types: as far as the config has such keys."""
    whole = _followed(subject.settings, at)
    if whole or not at:
        return whole
    # Axolotl validates a dataset by itself too, and its complaint begins there.
    for section in ("datasets", "test_datasets"):
        for index, item in enumerate(items(subject.get(section))):
            below = _followed(item, at)
            if below:
                return (section, str(index), *below)
    return at[:1]


def _followed(value: object, at: tuple[str, ...]) -> tuple[str, ...]:
    place: list[str] = []
    for part in at:
        keys = {str(key): key for key in value} if isinstance(value, Mapping) else {}
        if isinstance(value, Mapping) and part in keys:
            value = value[keys[part]]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            continue
        place.append(part)
    return tuple(place)


def _remarks(subject: Subject, found: Sequence[Finding], answer: Answer) -> list[Finding]:
    """What Axolotl lets pass with a word: an error where that word is that the training will fail."""
    errors = [one for one in found if one.severity == "error"]
    remarks = []
    for said in dict.fromkeys(answer.warnings):
        if _FATAL not in said.lower():
            remarks.append(subject.found("CFG903", f"Axolotl: {said[:300]}", hint=""))
            continue
        words = re.findall(r"\w+", said)
        place = next(((word,) for word in words if word in subject.settings), ())
        if not _already_said(errors, place, said):
            severity = _severity(subject, answer)
            remarks.append(subject.found("CFG901", f"Axolotl: {said[:300]}", *place, severity=severity))
    return remarks


def _severity(subject: Subject, answer: Answer) -> Severity:
    """How much Axolotl's refusal weighs: a plugin of somebody else's, which was not asked, may bring what is missing,
    and another Axolotl than the one asked may take it."""
    return "warning" if answer.unsure or _elsewhere(subject, answer) else "error"


def _elsewhere(subject: Subject, answer: Answer) -> str:
    """The version that the replicas have, where it is another than the one asked; '' where it is the same, or not known."""
    theirs = {facts.packages["axolotl"] for facts in subject.facts if "axolotl" in facts.packages}
    return ", ".join(sorted(theirs)) if answer.axolotl and theirs and answer.axolotl not in theirs else ""
