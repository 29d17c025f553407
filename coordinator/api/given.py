"""What a rank was given, as its user may see it: for `/jobs/{id}/files`, and in the report."""

from __future__ import annotations

from coordinator.assignment import Work, rendered
from coordinator.attempt import AttemptState, Seat
from coordinator.core.problem import problem
from coordinator.core.protocol import Facts
from coordinator.core.redact import Redactor, secrets_of
from coordinator.core.views import RenderedFileView, RenderedView, Submission
from coordinator.render import RenderError
from coordinator.store import rows


def given(
    row: rows.Job, state: AttemptState, seat: Seat, facts: Facts | None, veil: Redactor
) -> RenderedView:
    """Files, environment and command without their secrets; the hashes are those of the files with them.

    Raises:
        ProblemError: 409 where nothing can be rendered.
    """
    work = Work(Submission.model_validate(row.submission), row.bundle_sha256)
    try:
        made = rendered(work, state, seat, facts)
    except RenderError as error:
        raise problem(
            409, "SYS106", veil.mask_text(f"Nothing could be rendered for rank {seat.rank}: {error}")
        ) from None
    secret = frozenset(secrets_of(made.environment))
    return RenderedView(
        rank=seat.rank,
        files=tuple(
            RenderedFileView(path=f.path, content=veil.mask_text(f.content), sha256=f.sha256)
            for f in made.files
        ),
        environment={
            name: "*" * len(value) if value in secret else value for name, value in made.environment.items()
        },
        argv=tuple(made.train_argv),
    )
