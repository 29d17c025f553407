"""What users ask for: submit, preflight, check, cancel and try again. Called by the routers of `api/`.

A submission is checked before anything of it is kept; one that repeats an idempotency key gets the job that
the first one made. Everything is committed before the controller hears of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import structlog
from sqlalchemy import Connection

from coordinator.broadcast import Broadcast
from coordinator.checks import BundleFiles, Purpose, examine, verdict
from coordinator.controller import Controller
from coordinator.core.catalogue import CODES
from coordinator.core.clock import now_at
from coordinator.core.problem import ProblemError, problem
from coordinator.core.protocol import BundleFile, Finding, Stage, bundle_sha256
from coordinator.core.views import TERMINAL_STATES, CheckVerdict, PreflightRequest, Submission
from coordinator.roster import Roster
from coordinator.second_opinion import SecondOpinion
from coordinator.settings import Settings
from coordinator.store import Store, queries, rows
from coordinator.veils import Veils

log = structlog.get_logger(__name__)

JOB_ID_BYTES = 4
# A DeepSpeed JSON or an accelerate YAML has a few kilobytes; a larger file of that kind is a dataset.
CONFIGURATION_BYTES = 64 << 10
# What Linux takes as one name, and as a whole path less the folder of the job on a replica.
NAME_BYTES = 255
PATH_BYTES = 3072
_CONFIGURATION = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job, and whether this submission made it or repeated the one that did."""

    job: rows.Job
    created: bool


class Submissions:
    """Takes submissions and the wishes about them. One for the service."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        roster: Roster,
        controller: Controller,
        broadcast: Broadcast,
        veils: Veils,
        opinion: SecondOpinion,
    ) -> None:
        self._opinion = opinion
        self._veils = veils
        self._settings = settings
        self._store = store
        self._roster = roster
        self._controller = controller
        self._broadcast = broadcast

    async def check(self, submission: Submission, purpose: Purpose = "check") -> CheckVerdict:
        """What the checks say of it, with the facts of the replicas that are here, and Axolotl where it is beside us.

        Raises:
            ProblemError: 422 where it allows a code that does not exist.
        """
        refuse_unknown(submission.allow)
        misplaced = misplaced_files(submission.files)
        if misplaced:
            return CheckVerdict(verdict="reject", findings=misplaced)
        views = self._roster.views()
        facts = tuple(view.facts for view in views if view.alive and view.facts is not None)
        subject, found = await asyncio.to_thread(
            examine,
            self._with_nodes(submission),
            files=BundleFiles(submission),
            facts=facts,
            data_roots=self._settings.data_roots,
            purpose=purpose,
        )
        judged = verdict(found, submission.allow)
        if subject is not None and judged.verdict == "accept":
            judged = verdict((*found, *await self._opinion.on(subject, found)), submission.allow)
        # What is found goes into the store, onto pages and into logs: without the secrets it speaks of.
        veil = self._veils.over(submission.model_dump(exclude={"files"}))
        return CheckVerdict.model_validate_json(veil.mask(judged.model_dump_json().encode()))

    async def submit(self, raw: bytes, submission: Submission, key: str | None, actor: str) -> Submitted:
        """Queues a job.

        Args:
            raw: the body as it came, which `key` (Idempotency-Key) stands for.

        Raises:
            ProblemError: 422 where the checks refuse it, it allows a code that does not exist, or `key` was used for another
                body.
        """
        digest = hashlib.sha256(raw).hexdigest()
        if key is not None:
            earlier = await self._store.read(lambda c: queries.job_by_idempotency_key(c, key))
            if earlier is not None:
                return _repeated(earlier, digest)
        judged = await self.check(submission, "submit")
        allowed = frozenset(submission.allow)
        if any(found.severity == "error" and found.code not in allowed for found in judged.findings):
            raise refused(judged)
        job = self._row(submission, key, digest, actor)
        files = {file.path: file.data for file in submission.files}
        return await self._queue(job, files, judged.findings)

    async def preflight(self, raw: bytes, asked: PreflightRequest, key: str | None, actor: str) -> Submitted:
        """Queues a handshake without a job: a row of kind "preflight", with nothing to render.

        Raises:
            ProblemError: 422 where it allows a code that does not exist, or `key` was used for another body.
        """
        digest = hashlib.sha256(raw).hexdigest()
        if key is not None:
            earlier = await self._store.read(lambda c: queries.job_by_idempotency_key(c, key))
            if earlier is not None:
                return _repeated(earlier, digest)
        refuse_unknown(asked.allow)
        here = sum(self._roster.alive(presence.replica_id) for presence in self._roster.all())
        submission = Submission(
            name="preflight",
            config="",
            nodes=asked.nodes or self._settings.nodes or max(1, here),
            gpus_per_node=asked.gpus_per_node,
            deadlines=asked.deadlines,
            allow=asked.allow,
        )
        row = replace(self._row(submission, key, digest, actor), kind="preflight")
        return await self._queue(row, {}, ())

    async def _queue(
        self, job: rows.Job, files: Mapping[str, bytes], findings: tuple[Finding, ...]
    ) -> Submitted:
        """Commit the job, or find the one that its key has made already."""
        key, digest, actor = job.idempotency_key, job.idempotency_sha256 or "", job.actor

        def queue(c: Connection) -> rows.Job | None:
            before = queries.job_by_idempotency_key(c, key) if key is not None else None
            if before is not None:
                return before
            queries.insert_job(c, job, files)
            queries.insert_findings(c, job.id, None, job.created_at, findings)
            queries.insert_event(
                c,
                at=job.created_at,
                actor=actor,
                action="preflight.submitted" if job.kind == "preflight" else "job.submitted",
                job_id=job.id,
                detail={"name": job.name, "nodes": job.nodes, "files": len(files)},
            )
            return None

        before = await self._store.write(queue)
        if before is not None:
            return _repeated(before, digest)
        log.info("job submitted", job=job.id, kind=job.kind, name=job.name, nodes=job.nodes, actor=actor)
        self._changed(job.id)
        return Submitted(job, created=True)

    async def cancel(self, job_id: str, actor: str) -> None:
        """Wishes a job's end; the controller ends it. Repeating it is harmless.

        Raises:
            ProblemError: 404, or 409 where the job has ended in another way.
        """

        def wish(c: Connection) -> None:
            row = _job(c, job_id)
            if row.state == "cancelled" or (row.state not in TERMINAL_STATES and row.cancel_requested):
                return
            if row.state in TERMINAL_STATES:
                raise problem(409, "SYS106", f"Job {job_id} has {row.state} already and cannot be cancelled.")
            queries.update_job(c, job_id, cancel_requested=True)
            queries.insert_event(c, at=now_at(), actor=actor, action="job.cancel_requested", job_id=job_id)

        await self._store.write(wish)
        self._changed(job_id)

    async def retry(self, job_id: str, actor: str) -> None:
        """Queues a job that has ended once more, with one more attempt allowed.

        Raises:
            ProblemError: 404, or 409 while the job has not ended.
        """

        def wish(c: Connection) -> None:
            row = _job(c, job_id)
            if row.state not in TERMINAL_STATES:
                raise problem(
                    409, "SYS106", f"Job {job_id} is {row.state}; only one that has ended can be tried again."
                )
            if row.dropped_at is not None and row.bundle_sha256 is not None:
                raise problem(409, "SYS121", f"The files of job {job_id} are kept no more; submit it again.")
            queries.update_job(
                c,
                job_id,
                state="queued",
                stage=Stage.GATHER.value,
                verdict="waiting to be tried again",
                started_at=None,
                ended_at=None,
                cancel_requested=False,
                attempts_allowed=row.attempts + 1,
            )
            queries.insert_event(c, at=now_at(), actor=actor, action="job.retried", job_id=job_id)

        await self._store.write(wish)
        self._changed(job_id)

    def _with_nodes(self, submission: Submission) -> Submission:
        """The submission with the deployment's number of replicas where it names none."""
        if submission.nodes is not None:
            return submission
        return submission.model_copy(update={"nodes": self._settings.nodes or 1})

    def _row(self, submission: Submission, key: str | None, digest: str, actor: str) -> rows.Job:
        complete = self._with_nodes(submission)
        assert complete.nodes is not None
        return rows.Job(
            id=secrets.token_hex(JOB_ID_BYTES),
            name=complete.name or PurePosixPath(complete.config_name).stem or "job",
            nodes=complete.nodes,
            gpus_per_node=complete.gpus_per_node,
            created_at=now_at(),
            verdict="queued",
            attempts_allowed=complete.max_attempts,
            actor=actor,
            idempotency_key=key,
            idempotency_sha256=digest,
            bundle_sha256=bundle_sha256(complete.files) if complete.files else None,
            # The bundle lies in rows of its own; the submission keeps what rendering reads of it.
            submission=complete.model_copy(update={"files": configuration_files(complete.files)}).model_dump(
                mode="json"
            ),
        )

    def _changed(self, job_id: str) -> None:
        self._controller.wake()
        self._broadcast.publish(f"job:{job_id}")
        self._broadcast.publish("jobs")


def refused(judged: CheckVerdict) -> ProblemError:
    """422 with all findings; its text is that of the first error."""
    errors = [found for found in judged.findings if found.severity == "error"]
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem(422, "SYS108", f"{errors[0].code}: {errors[0].message}{more}", findings=judged.findings)


def refuse_unknown(allow: Sequence[str]) -> None:
    """Raises: ProblemError (422) for a code to be allowed that is none: it would allow nothing, without a word."""
    unknown = [code[:32] for code in allow if code not in CODES]
    if unknown:
        said = (
            f"allow: there is no finding {', '.join(unknown[:8])}; `rankcall explain` knows those there are."
        )
        raise problem(422, "SYS103", said)


def configuration_files(files: Iterable[BundleFile]) -> tuple[BundleFile, ...]:
    """The files of a bundle that a config may be rendered from: few and small, kept with the submission."""
    return tuple(f for f in files if f.path.endswith(_CONFIGURATION) and len(f.data) <= CONFIGURATION_BYTES)


def misplaced_files(files: Iterable[BundleFile]) -> tuple[Finding, ...]:
    """A finding for each path that is not one of its own inside the config's folder."""
    found: list[Finding] = []
    seen: dict[PurePosixPath, str] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if _unwritable(path):
            found.append(_misplaced(file.path, "has a name that is too long for a disk"))
        elif path.is_absolute() or ".." in path.parts or path == PurePosixPath() or _unprintable(file.path):
            found.append(_misplaced(file.path, "is not a path inside the config's folder"))
        elif path in seen or any(parent in seen for parent in path.parents):
            found.append(_misplaced(file.path, "is there twice, or lies inside another file of the bundle"))
        seen[path] = file.path
    folders = {parent for path in seen for parent in path.parents}
    found += [
        _misplaced(name, "is a file and a folder at once") for path, name in seen.items() if path in folders
    ]
    return tuple(found)


def _misplaced(path: str, what: str) -> Finding:
    shown = path if len(path) <= 120 else f"{path[:120]}…"
    return Finding(
        code="SYS103", severity="error", message=f"The bundle's file {shown!r} {what}.", key="files"
    )


def _unprintable(path: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in path)


def _unwritable(path: PurePosixPath) -> bool:
    """Whether a replica's disk could not hold it."""
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in path.parts]
    return max(sizes, default=0) > NAME_BYTES or sum(sizes) + len(sizes) > PATH_BYTES


def _job(c: Connection, job_id: str) -> rows.Job:
    row = queries.job(c, job_id)
    if row is None:
        raise problem(404, "SYS102", f"There is no job {job_id!r}.")
    return row


def _repeated(earlier: rows.Job, digest: str) -> Submitted:
    if earlier.idempotency_sha256 != digest:
        raise problem(
            422,
            "SYS105",
            f"This Idempotency-Key stands for job {earlier.id}, which was submitted with another body.",
        )
    return Submitted(earlier, created=False)
