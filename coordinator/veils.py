"""What of a job is secret, and masked wherever somebody reads: rendered files, findings, states, error pages.

A secret keeps its length and loses everything else, for administrators too: a page is shared, a report is
mailed. Known are the values that the submission holds under names of secrets (`hub_token`, `*_api_key`), this
process's own surroundings, and the well-known shapes (`core/redact.py`). Replicas alone get the real ones.
Called by the API and its feeds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from threading import Lock

from coordinator.core.overrides import scalar
from coordinator.core.redact import Redactor, secrets_within
from coordinator.core.yaml import YamlError, load
from coordinator.store import rows

# A job's veil is a few hundred bytes; beyond so many it is made again when it is needed.
MOST_KEPT = 1024


class Veils:
    """The veil of each job. One for the service; used from its loop and from the store's readers."""

    def __init__(self, surroundings: Mapping[str, str], own: tuple[str, ...]) -> None:
        """`own`: the secrets of this coordinator, its tokens."""
        self.base = Redactor.of_environment(surroundings, own)
        self._kept: OrderedDict[str, Redactor] = OrderedDict()
        self._lock = Lock()

    def of(self, job: rows.Job) -> Redactor:
        """Masks what is secret in this job, and what is secret anyway."""
        with self._lock:
            known = self._kept.get(job.id)
            if known is not None:
                self._kept.move_to_end(job.id)
                return known
        made = self.over(job.submission)
        with self._lock:
            self._kept[job.id] = made
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return made

    def over(self, submission: Mapping[str, object]) -> Redactor:
        """The same for a submission (as JSON) that is no job yet."""
        found = tuple(_secrets(submission))
        return self.base.with_secrets(found) if found else self.base


def _secrets(submission: Mapping[str, object]) -> Iterator[str]:
    for text in _texts(submission):
        try:
            yield from secrets_within(load(text))
        except YamlError:
            continue  # what cannot be read is not rendered either; the shapes are masked all the same
    overrides = submission.get("overrides")
    for override in overrides if isinstance(overrides, list | tuple) else ():
        key, _, value = str(override).partition("=")
        *parents, name = key.strip().split(".")
        try:
            read = scalar(value)
        except YamlError:
            read = value.strip()  # it is shown where it is refused
        yield from secrets_within({name: read}, tuple(parents))


def _texts(submission: Mapping[str, object]) -> Iterator[str]:
    """The config and the files that came beside it: YAML, or JSON, which is YAML too."""
    yield str(submission.get("config") or "")
    for brought in ("accelerate", "deepspeed"):
        file = submission.get(brought)
        if isinstance(file, Mapping):
            yield str(file.get("text") or "")
