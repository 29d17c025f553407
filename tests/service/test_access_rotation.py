"""Tokens and sessions over time: a restart signs nobody out, a changed token does, and nothing of them can be read back."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator import auth
from coordinator.auth import SESSION_COOKIE
from coordinator.sessions import SESSION_S, Sessions
from coordinator.settings import Settings, SettingsError
from coordinator.store import Store

NEW_TOKEN = "the-new-admin-token-of-the-tests"


def signed_in(coordinator: Coordinator, token: str) -> str:
    with coordinator.client(None) as browser:
        browser.post("/api/v1/session", json={"token": token}).raise_for_status()
        return str(browser.cookies[SESSION_COOKIE])


def role(coordinator: Coordinator, session_id: str) -> str:
    with coordinator.client(None, cookies={SESSION_COOKIE: session_id}) as browser:
        return str(browser.get("/api/v1/session").json()["role"])


def test_a_restart_of_the_coordinator_signs_nobody_out(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        admin, viewer = signed_in(coordinator, TOKEN), signed_in(coordinator, VIEWER_TOKEN)
    with running(tmp_path) as coordinator:
        assert (role(coordinator, admin), role(coordinator, viewer)) == ("admin", "viewer")


def test_a_changed_token_signs_out_whom_it_let_in_and_nobody_else(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        admin, viewer = signed_in(coordinator, TOKEN), signed_in(coordinator, VIEWER_TOKEN)
    with running(tmp_path, token=NEW_TOKEN) as coordinator:
        assert (role(coordinator, admin), role(coordinator, viewer)) == ("none", "viewer")


def test_a_session_ends_by_itself(store: Store) -> None:
    async def run() -> None:
        sessions = Sessions(store)
        session_id = await sessions.start("admin", b"digest", 1000.0)
        assert await sessions.find(session_id, 999.0 + SESSION_S) is not None
        assert await sessions.find(session_id, 1000.0 + SESSION_S) is None

    asyncio.run(run())


def test_more_sessions_than_any_team_has_push_out_the_oldest(store: Store) -> None:
    async def run() -> None:
        sessions = Sessions(store, most=3)
        made = [await sessions.start("admin", b"digest", 1000.0 + number) for number in range(4)]
        there = [await sessions.find(session_id, 2000.0) is not None for session_id in made]
        assert there == [False, True, True, True]

    asyncio.run(run())


def test_the_store_gives_away_neither_sessions_nor_tokens(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        session_id = signed_in(coordinator, TOKEN)
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        replica_token = agent.token
        agent.end()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "coordinator").iterdir())
    for secret in (session_id, TOKEN, VIEWER_TOKEN, replica_token, auth.digest(TOKEN).hex()):
        assert secret.encode() not in stored
    connection = sqlite3.connect(tmp_path / "coordinator" / "rankcall.db")
    try:
        assert connection.execute("SELECT count(*) FROM session").fetchone() == (1,)
    finally:
        connection.close()


def test_a_changed_join_token_ends_what_was_issued_for_it_until_the_agent_has_the_new_one(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as coordinator:
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        first = agent.token
    with running(tmp_path) as coordinator:  # the same token: the replica is known still
        assert desired(coordinator, agent, first) == 200
    with running(tmp_path, token=NEW_TOKEN) as coordinator:
        assert desired(coordinator, agent, first) == 401
        stranger = Agent(coordinator.url, 0, TOKEN)
        assert stranger.register().status_code == 401
        known = Agent(coordinator.url, 0, NEW_TOKEN)
        known.incarnation = 2
        known.register().raise_for_status()
        assert desired(coordinator, known, known.token) == 200
        assert desired(coordinator, known, first) == 401


def test_with_the_previous_token_replicas_go_on_but_nobody_administers(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        first = agent.token
    with running(tmp_path, token=NEW_TOKEN, previous_token=TOKEN) as coordinator:
        assert desired(coordinator, agent, first) == 200
        again = Agent(coordinator.url, 0, TOKEN)
        again.register().raise_for_status()
        second = again.token
        assert desired(coordinator, again, second) == 200
        with coordinator.client(TOKEN) as client:
            assert client.get("/api/v1/jobs").status_code == 403
            assert client.post("/api/v1/session", json={"token": TOKEN}).status_code == 401
    with running(tmp_path, token=NEW_TOKEN) as coordinator:  # the rotation is over
        assert desired(coordinator, again, second) == 401


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANKCALL_PREVIOUS_TOKEN": "a-long-enough-token"}, "RANKCALL_TOKEN is not"),
        (
            {"RANKCALL_TOKEN": "a-long-enough-token", "RANKCALL_PREVIOUS_TOKEN": "a-long-enough-token"},
            "equals",
        ),
        ({"RANKCALL_TOKEN": "a-long-enough-token", "RANKCALL_PREVIOUS_TOKEN": "short"}, "could be guessed"),
    ],
)
def test_a_rotation_that_cannot_be_is_one_sentence(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=named) as refused:
        Settings.from_environment()
    assert "a-long-enough-token" not in str(refused.value)


def desired(coordinator: Coordinator, agent: Agent, token: str) -> int:
    with coordinator.client(token) as client:
        return client.get(f"/api/v1/replicas/{agent.replica_id}/desired").status_code
