"""RANKCALL_URL names several coordinator processes: an agent speaks to one that answers, `rankcall up` starts those here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import TOKEN, running

from agent.client import Backoff, Coordinator
from agent.settings import AgentSettings
from coordinator.claim import CannotStart
from coordinator.cli.remote import base_url
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.protocol import Registered, Registration, Report
from coordinator.core.views import Problem
from coordinator.core.whereabouts import hints_of
from coordinator.role import decide
from coordinator.supervisor import Supervisor


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_an_agent_registers_with_whichever_answers_and_goes_on_to_the_next_when_that_fails(
    tmp_path: Path,
) -> None:
    async def introduce() -> Registration:
        return Registration(replica_id="r-0000000001", fingerprint="f", incarnation=1)

    async def welcome(registered: Registered) -> None:
        assert registered.incarnation == 1

    async def live(away: str, here: str) -> None:
        async def locate() -> tuple[str, ...]:
            return away, here

        coordinator = Coordinator(locate, TOKEN)
        keeping = asyncio.create_task(coordinator.keep_registered(introduce, lambda _: None, welcome))
        async with asyncio.timeout(20):
            await coordinator.wait_registered()
            assert coordinator.url == here
            await coordinator.report(Report(incarnation=1))
            # What failed elsewhere before says nothing about the present one; what fails here does.
            await coordinator.wait_and_relocate(Backoff(), Unreachable(away, "it was away"))
            assert coordinator.url == here
            wrong = ProblemAnswer(Problem(title="no such thing", status=404), url=here)
            await coordinator.wait_and_relocate(Backoff(), wrong)
            assert coordinator.url == here
            gone = ProblemAnswer(Problem(title="no active coordinator", status=503), url=here)
            await coordinator.wait_and_relocate(Backoff(), gone)
            assert coordinator.url == away
            with pytest.raises(Unreachable) as failed:
                await coordinator.report(Report(incarnation=1))
            await coordinator.wait_and_relocate(Backoff(), failed.value)
            await coordinator.report(Report(incarnation=1))  # with the token it has: nobody registers anew
        keeping.cancel()
        await coordinator.aclose()

    with running(tmp_path) as coordinator, nobody() as away:
        asyncio.run(live(away, coordinator.url))


def test_the_settings_of_an_agent_take_several_and_spell_them_out() -> None:
    settings = AgentSettings(url="10.0.0.4:8000, https://b/")
    assert settings.url == "http://10.0.0.4:8000,https://b"


def test_a_command_asks_the_first_that_answers(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator, nobody() as away:
        assert base_url({"RANKCALL_URL": f"{away} {coordinator.url}"}) == coordinator.url
        assert base_url({"RANKCALL_URL": away}) == away


URLS = {"RANKCALL_URL": "http://10.0.0.4:8000,http://10.0.0.5:8000"}
POSTGRESQL = {"RANKCALL_DATABASE_URL": "postgresql+psycopg://db/rankcall"}


def test_a_replica_that_owns_one_of_the_addresses_runs_a_coordinator_and_its_agent_knows_all(
    tmp_path: Path,
) -> None:
    hints = hints_of(URLS)
    supervisor = Supervisor({**URLS, **POSTGRESQL}, hints, tmp_path)
    services = supervisor.wanted(decide(hints, lambda host: (host,), lambda address: address == "10.0.0.5"))
    assert set(services) == {"coordinator", "agent"}
    assert services["agent"].environment["RANKCALL_URL"] == "http://127.0.0.1:8000,http://10.0.0.4:8000"
    services = supervisor.wanted(decide(hints, lambda host: (host,), lambda _: False))
    assert set(services) == {"proxy", "agent"}
    assert services["proxy"].environment["RANKCALL_URL"] == URLS["RANKCALL_URL"]


def test_several_coordinators_that_share_no_database_are_refused(tmp_path: Path) -> None:
    hints = hints_of(URLS)
    place = decide(hints, lambda host: (host,), lambda address: address == "10.0.0.4")
    with pytest.raises(CannotStart, match="RANKCALL_DATABASE_URL"):
        Supervisor(URLS, hints, tmp_path).take_role(place, 0.0)
