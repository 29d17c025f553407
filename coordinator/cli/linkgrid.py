"""A grid of links on a terminal: who sits where, a matrix of round trips, and the rounds of the collective.

Up to `MATRIX_UP_TO` replicas fit on a screen as rows and columns; above, the worst links are listed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.cli.console import write, write_table
from coordinator.core.views import LinkEndView, LinkGrid, LinkView, RoundView

MATRIX_UP_TO = 16
# With so few columns a cell has room for the throughput too.
_WIDE_UP_TO = 6
_WORST = 32
_CLOCK_SHOWN_S = 0.5  # below that it is as much the report's way as the clock
_ROUND_KINDS = {
    "within": "each within itself",
    "all": "all at once",
    "groups": "groups",
    "confirming": "all once more",
}


def write_grid(grid: LinkGrid) -> None:
    """Prints it as data on stdout."""
    write_table(
        ("RANK", "HOST", "ADDRESS", "INTERFACE", "CLOCK", "ALSO OFFERS"),
        (
            (
                end.rank,
                end.hostname or end.replica_id,
                end.address,
                end.interface or "–",
                _clock(end.clock_offset_s),
                _others(end),
            )
            for end in grid.replicas
        ),
    )
    if grid.links:
        write("")
        if len(grid.replicas) <= MATRIX_UP_TO:
            _write_matrix(grid)
        else:
            _write_worst(grid)
    for one in grid.rounds:
        write(f"round {one.number}: {_round(one)}")


def _write_matrix(grid: LinkGrid) -> None:
    """Rows are who asked, columns who answered."""
    cells = {(link.source, link.target): link for link in grid.links}
    ranks = [end.rank for end in grid.replicas]
    wide = len(ranks) <= _WIDE_UP_TO
    write_table(
        ("FROM \\ TO", *(str(rank) for rank in ranks)),
        ((source, *(_cell(cells, source, target, wide=wide) for target in ranks)) for source in ranks),
    )


def _write_worst(grid: LinkGrid) -> None:
    """The coordinator's order is by rank; sort here with its own measure of what is worst."""
    from coordinator.preflight.grid import worst_first

    ordered = worst_first(grid.links)
    write_table(
        ("FROM", "TO", "ROUND TRIP", "THERE", "BACK", "FAULT"),
        (
            (
                link.source,
                link.target,
                _time(link.rtt_s),
                _rate(link.bytes_per_s),
                _rate(link.return_bytes_per_s),
                _fault(link),
            )
            for link in ordered[:_WORST]
        ),
    )
    left = len(ordered) - min(len(ordered), _WORST)
    write(
        f"{grid.good} of {len(ordered)} links are good"
        + (f"; {left} more than these are not shown" if left else "")
    )


def _cell(cells: Mapping[tuple[int, int], LinkView], source: int, target: int, *, wide: bool) -> str:
    if source == target:
        return "·"
    link = cells.get((source, target))
    if link is None or link.state == "unknown":
        return "?"
    if link.state == "failed":
        return f"✗ {link.fault}" if link.at_fault else f"({link.fault})"
    words = _time(link.rtt_s) if link.rtt_s is not None else "✓"
    return f"{words}, {_rate(link.bytes_per_s)}" if wide and link.bytes_per_s else words


def _fault(link: LinkView) -> str:
    if link.state == "ok":
        return "passed at the second try" if link.tries > 1 else ""
    return link.error or link.fault or "not tested"


def _others(end: LinkEndView) -> str:
    return ", ".join(
        f"{offer.address} on {offer.interface or '?'} (reached by {offer.reached_by} of {offer.tried_by})"
        for offer in end.offers
        if not offer.used
    )


def _clock(offset_s: float | None) -> str:
    if offset_s is None:
        return "–"
    return "in step" if abs(offset_s) < _CLOCK_SHOWN_S else f"{offset_s:+.1f} s"


def _round(one: RoundView) -> str:
    words = {True: "passed", False: "FAILED", None: "…"}
    if one.kind in ("all", "confirming"):
        return f"{_ROUND_KINDS[one.kind]}: {words[one.groups[0].passed]}"
    listed = (f"{{{_ranks(group.ranks)}}} {words[group.passed]}" for group in one.groups)
    return f"{_ROUND_KINDS[one.kind]}: {', '.join(listed)}"


def _ranks(ranks: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2 5"."""
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in _runs(ranks))


def _runs(ranks: Sequence[int]) -> Iterable[tuple[int, int]]:
    first = last = None
    for rank in sorted(ranks):
        if first is None or last is None:
            first = last = rank
        elif rank == last + 1:
            last = rank
        else:
            yield first, last
            first = last = rank
    if first is not None and last is not None:
        yield first, last


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def _rate(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return "–"
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"
