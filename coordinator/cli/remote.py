"""The coordinator as the command line sees it: one method per route, errors as `Stop` with the right exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coordinator.cli.exits import Exit, Stop
from coordinator.core.http import BadAnswer, Client, ProblemAnswer, ServerEvent, Timeouts, Unreachable
from coordinator.core.tls import BadCertificate
from coordinator.core.views import (
    CheckVerdict,
    JobPage,
    JobView,
    LinkGrid,
    PreflightRequest,
    PreflightView,
    ReplicaPage,
    ReportView,
    StreamPage,
    Submission,
)
from coordinator.core.whereabouts import BadHint, checked_urls, speaks_tls, without_service_links

API = "/api/v1"
# A submission carries up to 64 MiB of files over a home's uplink.
_SUBMIT_TRANSFER_S = 600.0
# The coordinator sends something (a comment at least) far more often than this.
_FOLLOW_TRANSFER_S = 90.0
_LOOK = Timeouts(connect_s=2.0, transfer_s=3.0)
# What a proxy says for a coordinator that is away: a replica's own with the code SYS023, a platform's without one.
_NOBODY_THERE = (502, 503, 504)


def base_urls(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """RANKCALL_URL, else this machine's own port: every replica serves the coordinator's API there."""
    known = without_service_links(os.environ if environment is None else environment)
    url = known.get("RANKCALL_URL", "").strip()
    port = known.get("RANKCALL_PORT", "").strip() or "8000"
    try:
        scheme = "https" if speaks_tls(known) else "http"
        return checked_urls(url or f"{scheme}://127.0.0.1:{port}", "RANKCALL_URL")
    except BadHint as error:
        raise Stop(Exit.USAGE, str(error)) from None


def base_url(environment: Mapping[str, str] | None = None) -> str:
    """Of several coordinator processes the first that answers; of one that one, whether it does or not."""
    urls = base_urls(environment)
    for url in urls[1:] and urls:
        try:
            with Client(url, timeouts=_LOOK) as client:
                client.request("GET", "/healthz")
            return url
        except (Unreachable, ProblemAnswer, BadCertificate):
            continue
    return urls[0]


@contextmanager
def failures_as_stops(what: str = "") -> Iterator[None]:
    """Turns the client's exceptions into the end of the command. `what` names a thing that may not exist."""
    try:
        yield
    except BadAnswer as error:
        said = str(error)
        raise Stop(Exit.UNREACHABLE, f"{said[0].upper()}{said[1:]}.", hint=error.hint) from None
    except Unreachable as error:
        raise Stop(
            Exit.UNREACHABLE,
            f"The coordinator at {error.url} cannot be reached: {error.reason}.",
            hint=error.hint or "Is it running there (`rankcall up`)? RANKCALL_URL says where to look.",
        ) from None
    except ProblemAnswer as error:
        raise stop_of(error, what) from None


def stop_of(error: ProblemAnswer, what: str = "") -> Stop:
    problem = error.problem
    said = problem.detail or problem.title
    if error.status == 401:  # the API speaks of headers and of the page; here there is one way
        hint = "Set RANKCALL_TOKEN to the token of the deployment, here as on the replicas."
        return Stop(Exit.UNREACHABLE, f"Not authorised: {said}", hint=hint)
    if error.code == "SYS117":
        wait = f" Try again in {error.retry_after_s:.0f} s." if error.retry_after_s else ""
        return Stop(Exit.UNREACHABLE, f"{said}{wait}", hint=problem.hint or "")
    if error.status == 403:
        hint = problem.hint or ""
        return Stop(Exit.UNREACHABLE, f"Not authorised: {said}", hint=hint, findings=error.findings)
    if error.status == 404 and what:
        return Stop(Exit.NOT_FOUND, f"There is no {what}.", hint=problem.hint or "")
    if error.status in _NOBODY_THERE and error.code in (None, "SYS023", "SYS120"):
        return Stop(Exit.UNREACHABLE, said, hint=problem.hint or "")
    code = Exit.NOT_FOUND if error.status == 404 else Exit.FAILED
    if error.status in (400, 413, 422) and not error.findings:
        code = Exit.USAGE
    prefix = f"{error.code}: " if error.code else ""
    if error.findings:  # they say more than their summary
        said = problem.title
    return Stop(code, prefix + said, hint=problem.hint or "", findings=error.findings)


class Remote:
    """Use it in a `with`. Every method raises `Stop`, but `events` and `log`, whose caller reconnects."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = base_url() if url is None else url
        token = token or os.environ.get("RANKCALL_TOKEN") or os.environ.get("RANKCALL_VIEWER_TOKEN")
        try:
            self._client = Client(self.url, token=token or None, timeouts=Timeouts())
        except BadCertificate as error:
            raise Stop(Exit.USAGE, str(error)) from None

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def submit(self, submission: Submission, idempotency_key: str) -> tuple[JobView, bool]:
        """The job, and whether this call made it (an earlier one with the same key may have)."""
        with failures_as_stops():
            answer = self._client.request(
                "POST",
                f"{API}/jobs",
                message=submission,
                headers={"Idempotency-Key": idempotency_key},
                transfer_s=_SUBMIT_TRANSFER_S,
            )
            return answer.parse(JobView), answer.status == 201

    def jobs(self, *, limit: int = 50, cursor: str | None = None, state: str | None = None) -> JobPage:
        with failures_as_stops():
            parameters = {"limit": limit, "cursor": cursor, "state": state}
            return self._client.request("GET", f"{API}/jobs", parameters=parameters).parse(JobPage)

    def job(self, job_id: str) -> JobView:
        with failures_as_stops(f"job {job_id}"):
            return self._client.request("GET", _job(job_id)).parse(JobView)

    def cancel(self, job_id: str) -> JobView:
        return self._order(job_id, "cancel")

    def retry(self, job_id: str) -> JobView:
        return self._order(job_id, "retry")

    def _order(self, job_id: str, what: str) -> JobView:
        with failures_as_stops(f"job {job_id}"):
            return self._client.request("POST", f"{_job(job_id)}/{what}").parse(JobView)

    def start_preflight(self, asked: PreflightRequest, idempotency_key: str) -> PreflightView:
        with failures_as_stops():
            headers = {"Idempotency-Key": idempotency_key}
            answer = self._client.request("POST", f"{API}/preflights", message=asked, headers=headers)
            return answer.parse(PreflightView)

    def preflight(self, preflight_id: str) -> PreflightView:
        with failures_as_stops(f"preflight {preflight_id}"):
            return self._client.request("GET", f"{API}/preflights/{_part(preflight_id)}").parse(PreflightView)

    def links(self, job_id: str) -> LinkGrid:
        with failures_as_stops(f"job {job_id}"):
            return self._client.request("GET", f"{_job(job_id)}/links").parse(LinkGrid)

    def report(self, job_id: str) -> ReportView:
        with failures_as_stops(f"job {job_id}"):
            parameters = {"format": "json"}
            answer = self._client.request("GET", f"{_job(job_id)}/report", parameters=parameters)
            return answer.parse(ReportView)

    def streams(self, job_id: str) -> StreamPage:
        with failures_as_stops(f"job {job_id}"):
            return self._client.request("GET", f"{_job(job_id)}/streams").parse(StreamPage)

    def replicas(self) -> ReplicaPage:
        with failures_as_stops():
            return self._client.request("GET", f"{API}/replicas").parse(ReplicaPage)

    def check(self, submission: Submission) -> CheckVerdict:
        with failures_as_stops():
            answer = self._client.request(
                "POST", f"{API}/checks", message=submission, transfer_s=_SUBMIT_TRANSFER_S
            )
            return answer.parse(CheckVerdict)

    @contextmanager
    def artifact(
        self, job_id: str, artifact_id: str, offset: int
    ) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The bytes of an artifact from `offset` on, with the answer's headers."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        path = f"{_job(job_id)}/artifacts/{_part(artifact_id)}"
        with self._client.stream("GET", path, headers=headers, transfer_s=_FOLLOW_TRANSFER_S) as answer:
            yield answer

    @contextmanager
    def log(
        self,
        job_id: str,
        *,
        rank: int,
        stream: str,
        attempt: int | None,
        offset: int,
        follow: bool,
    ) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The bytes of one rank's stream from `offset` on."""
        parameters: dict[str, str | int | None] = {
            "rank": rank,
            "stream": stream,
            "attempt": attempt,
            "offset": offset,
            "follow": "1" if follow else None,
        }
        with self._client.stream(
            "GET", f"{_job(job_id)}/logs", parameters=parameters, transfer_s=_FOLLOW_TRANSFER_S
        ) as answer:
            yield answer

    def events(self, job_id: str, last_event_id: str | None) -> Iterator[ServerEvent]:
        """What happens to a job, from where the last event left off."""
        return self._client.events(
            f"{_job(job_id)}/events", last_event_id=last_event_id, transfer_s=_FOLLOW_TRANSFER_S
        )


def _job(job_id: str) -> str:
    return f"{API}/jobs/{_part(job_id)}"


def _part(text: str) -> str:
    """One component of a path, whatever the user typed."""
    from urllib.parse import quote

    return quote(text, safe="")
