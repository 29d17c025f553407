"""Random faults at random moments, known from a seed: what a chaos test does to a deployment while a job runs.

A schedule is plain: so many seconds after the submission, this happens to that. The same seed gives the same schedule,
and a schedule that made something fail can be kept as JSON, cut down and played again.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from deployment import Deployment
from link import Link

from agent import launcher

# What happens to whom, and what ends it. A training is stopped as a busy host stops it, never killed: that is a failure.
FAULTS = {
    "agent": (("kill", "start"), ("kill", "start"), ("stop", "continue")),
    "coordinator": (("kill", "start"), ("kill", "start"), ("stop", "continue")),
    "link": (("cut", "open"), ("silent", "open"), ("deaf", "open")),
    "training": (("stop", "continue"),),
}
SHORTEST_S, LONGEST_S = 0.1, 6.0


@dataclass(frozen=True, slots=True)
class Act:
    """At this moment this happens to `whom`, the replica of this number (0 for the coordinator, of which there is one)."""

    at_s: float
    what: str
    whom: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.what} {self.whom} {self.number}"


def schedule(seed: int, nodes: int, from_s: float, until_s: float) -> tuple[Act, ...]:
    """Some faults between two moments; each is over by itself, and two of them never befall the same thing at once."""
    chance = random.Random(f"chaos {seed}")
    things = [("coordinator", 0)] * 3 + [
        (whom, number) for whom in ("agent", "agent", "link", "link", "training") for number in range(nodes)
    ]
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    acts: list[Act] = []
    for _ in range(chance.randrange(8, 16)):
        whom, number = chance.choice(things)
        begins_s = chance.uniform(from_s, until_s)
        ends_s = begins_s + SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()
        what, undone = chance.choice(FAULTS[whom])
        before = taken.setdefault((whom, number), [])
        if any(begins_s <= other_ends and other_begins <= ends_s for other_begins, other_ends in before):
            continue
        before.append((begins_s, ends_s))
        acts += [
            Act(round(begins_s, 2), what, whom, number),
            Act(round(ends_s, 2), undone, whom, number),
        ]
    return tuple(sorted(acts, key=lambda act: act.at_s))


def dumped(acts: Iterable[Act]) -> str:
    return json.dumps([asdict(act) for act in acts])


def loaded(path: Path) -> tuple[Act, ...]:
    return tuple(Act(**act) for act in json.loads(path.read_text()))


class Mischief:
    """Does to a deployment what a schedule says. Use as a context manager: it makes the links of its agents."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._stack = ExitStack()
        self._links: list[Link] = []

    def __enter__(self) -> Mischief:
        for _ in range(self._deployment.nodes):
            self._links.append(self._stack.enter_context(Link(self._deployment.port)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_agent(self, number: int) -> None:
        """An agent that reaches its coordinator over its link."""
        self._deployment.start_agent(
            number,
            RANKCALL_URL=f"http://127.0.0.1:{self._links[number].port}",
            **self._deployment.agents_have,
        )

    def play(self, acts: Sequence[Act], since_s: float) -> None:
        """All of it, each at its moment after `since_s` of the monotonic clock."""
        for act in acts:
            time.sleep(max(0.0, since_s + act.at_s - time.monotonic()))
            self.do(act)

    def do(self, act: Act) -> None:
        deployment = self._deployment
        match act.whom, act.what:
            case "agent", "kill":
                deployment.end_agent(act.number, signal.SIGKILL)
            case "agent", "start":
                self.start_agent(act.number)
            case "agent", how:
                deployment.agents[act.number].send_signal(_signal(how))
            case "coordinator", "kill":
                deployment.end_coordinator(signal.SIGKILL)
            case "coordinator", "start":
                deployment.start_coordinator(wait=False)
            case "coordinator", how:
                assert deployment.coordinator is not None
                deployment.coordinator.send_signal(_signal(how))
            case "link", mode:
                self._links[act.number].become(mode)  # type: ignore[arg-type]
            case "training", how:
                for ones in launcher.marked(deployment.layout(act.number)).values():
                    for one in ones:
                        launcher.process.send(one, _signal(how))


def _signal(how: str) -> signal.Signals:
    return {"stop": signal.SIGSTOP, "continue": signal.SIGCONT}[how]
