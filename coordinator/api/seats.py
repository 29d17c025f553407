"""Which seat is meant by a rank and perhaps an attempt's number: for all that asks of one rank."""

from __future__ import annotations

from coordinator.api.problems import no_such
from coordinator.attempt import AttemptState, Seat
from coordinator.store import rows
from coordinator.views_of import attempt_of, foremost


def seat_of(attempts: list[rows.Attempt], number: int | None, rank: int) -> tuple[AttemptState, Seat]:
    """The seat of a rank in the attempt of this number, or in the foremost.

    Raises:
        ProblemError: 404 where there is none.
    """
    states = [attempt_of(row) for row in attempts if number is None or row.number == number]
    if not states:
        raise no_such("attempt", str(number))
    meant = foremost(states)
    seat = next((seat for seat in meant.seats if seat.rank == rank), None)
    if seat is None:
        raise no_such("rank", str(rank))
    return meant, seat
