"""Several coordinator processes on one PostgreSQL database: any of them may be asked, one is active, another takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from cable import Cable
from coordinators import PATIENCE_S, TAKEOVER_S, Fleet, Training, eventually, fleet_in, two
from least import CONFIG
from postgresql import Server
from serving import TOKEN
from sqlalchemy import Connection
from test_api_process import environment, refused

from coordinator.office import SharedOffice
from coordinator.store import Fenced, Store, StoreError, queries, streams
from coordinator.tenure import TenureTimes


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as made:
        yield made


def test_the_active_coordinator_is_killed_in_mid_training_and_no_byte_is_lost_or_doubled(
    fleet: Fleet, postgresql: Server
) -> None:
    url = postgresql.database()
    active, standby = two(fleet, url)
    training = Training(fleet, standby, [active.url, standby.url])  # all of it through the one that stands by
    eventually(lambda: all(writer.steps > 20 for writer in training.writers), fleet.said)
    killed_s = time.monotonic()
    active.end(signal.SIGKILL)
    training.acknowledged(lambda: killed_s + 0.5, TAKEOVER_S)
    assert standby.role() == "active"
    # The one that was killed is started again, and the other in turn is killed.
    back = fleet.start(url)
    assert back.role() == "standby"
    training.ask(standby.url, back.url)
    training.acknowledged(lambda: time.monotonic() - 1)
    killed_s = time.monotonic()
    standby.end(signal.SIGKILL)
    training.acknowledged(lambda: killed_s + 0.5, TAKEOVER_S)
    training.ended_well(back, back)


@pytest.mark.long
def test_one_that_was_frozen_stands_by_when_it_wakes_up_and_writes_nothing_of_its_own(
    fleet: Fleet, postgresql: Server
) -> None:
    active, standby = two(fleet, postgresql.database())
    training = Training(fleet, active, [active.url, standby.url])
    eventually(lambda: all(writer.steps > 5 for writer in training.writers), fleet.said)
    active.popen.send_signal(signal.SIGSTOP)
    eventually(lambda: standby.role() == "active", fleet.said, TAKEOVER_S)
    training.acknowledged(lambda: time.monotonic() - 1)
    os.kill(active.popen.pid, signal.SIGCONT)
    eventually(lambda: active.role() == "standby", fleet.said)
    # It passes on now, also what is said to it by those who have not noticed anything.
    training.ask(active.url)
    then_s = time.monotonic()
    training.acknowledged(lambda: then_s + 1.0)
    training.ended_well(active, standby)


@pytest.mark.long
def test_one_that_is_cut_off_from_the_database_answers_nobody_and_another_takes_over(
    fleet: Fleet, postgresql: Server
) -> None:
    url = postgresql.database()
    with Cable(postgresql.port) as cable:
        through = url.replace(f":{postgresql.port}/", f":{cable.port}/")
        active, standby = two(fleet, through, url)
        with active.client() as client:
            assert client.get("/jobs").status_code == 200
            cable.cut()
            eventually(lambda: standby.role() == "active", fleet.said, TAKEOVER_S)
            refusal = client.get("/replicas")  # which it would answer from memory
            assert refusal.status_code == 503 and refusal.json()["code"] == "SYS120"
            assert (
                httpx.get(f"{active.url}/readyz", trust_env=False, timeout=30).json()["detail"]
                == "No coordinator process is active."
            )
        with standby.client() as client:
            assert (
                client.post("/jobs", json={"config": CONFIG}).raise_for_status().json()["state"] == "queued"
            )
        cable.mend()
        eventually(lambda: active.role() == "standby", fleet.said)
        with active.client() as client:
            eventually(lambda: client.get("/jobs").status_code == 200, fleet.said)
            assert len(client.get("/jobs").json()["items"]) == 1


def test_one_that_is_told_to_end_hands_over_at_once(fleet: Fleet, postgresql: Server) -> None:
    active, standby = two(fleet, postgresql.database())
    with (
        standby.client() as client,
        client.stream("GET", "/watch") as events,
    ):  # an event stream that is passed on ends with its sender, and the browser asks again
        assert "overview" in next(text for text in events.iter_text() if "overview" in text)
        active.end(signal.SIGTERM)
        for _ in range(100):
            if standby.role() == "active":
                break
            time.sleep(0.05)
        assert standby.role() == "active", fleet.said()
    with standby.client() as client:
        assert client.get("/jobs").status_code == 200


def test_who_asked_is_known_though_another_process_passed_it_on(fleet: Fleet, postgresql: Server) -> None:
    active, standby = two(fleet, postgresql.database())
    with standby.client() as client:
        visitor = {"X-Forwarded-For": "192.0.2.9"}  # as a proxy on its machine tells it
        client.post("/jobs", json={"config": CONFIG}, headers=visitor).raise_for_status()
        answer = client.get("/events")
    submitted = next(event for event in answer.json()["items"] if event["action"] == "job.submitted")
    assert submitted["actor"] == "admin@192.0.2.9"
    assert len([name for name in answer.headers if name == "content-security-policy"]) == 1
    with httpx.Client(base_url=active.url, trust_env=False) as stranger:
        forged = {"X-Rankcall-Passed-On": "guess", "X-Forwarded-For": "192.0.2.7"}
        assert stranger.get("/api/v1/jobs", headers=forged).status_code == 401


def test_what_an_earlier_epoch_writes_is_refused_inside_its_transaction(postgresql: Server) -> None:
    url = postgresql.database()
    first, second = Store.open(url), Store.open(url)
    times = TenureTimes(stale_s=3.0, serve_s=2.0)  # on a busy machine what follows takes a while
    ours, theirs = SharedOffice(first, "a", "http://a", times), SharedOffice(second, "b", "http://b", times)

    async def change_hands() -> None:
        assert await ours.look() and ours.here()
        await first.write(lambda c: streams.append(c, "a-1", "r-1", "s", 0, b"before"))
        assert not await theirs.look()
        found = theirs.elsewhere()
        assert found is not None and found.url == "http://a" and ours.proves(found.secret)
        with pytest.raises(Fenced):
            await second.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b"stranger"))
        await asyncio.sleep(3.1)
        assert not ours.here()  # by its own clock, before anybody tells it
        assert await theirs.look() and theirs.here()
        await second.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b" after"))
        with pytest.raises(Fenced, match="http://b"):
            await first.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b" ghost"))
        await ours.keep()  # returns: it is lost
        assert not ours.here()
        assert not await ours.look()

    asyncio.run(change_hands())
    kept = first.read_now(lambda c: (streams.read(c, "a-1", "r-1", "s", 0, 99), queries.lease(c)))
    assert kept[0] == b"before after" and kept[1] is not None and kept[1].epoch == 2
    first.close()
    second.close()


def test_a_lease_is_taken_though_its_holder_was_frozen_in_the_middle_of_a_transaction(
    postgresql: Server,
) -> None:
    url = postgresql.database()
    frozen, other = Store.open(url), Store.open(url)
    inside, go_on = threading.Event(), threading.Event()

    def stand_still(c: Connection) -> None:
        streams.append(c, "a-1", "r-1", "s", 0, b"never committed")
        inside.set()
        go_on.wait(PATIENCE_S)

    writing = threading.Thread(target=lambda: refusals.append(failure_of(frozen, stand_still)))
    refusals: list[BaseException | None] = []

    async def take_over() -> float:
        times = TenureTimes(stale_s=0.1)
        assert await SharedOffice(frozen, "a", "http://a", times).look()
        theirs = SharedOffice(other, "b", "http://b", times)
        assert not await theirs.look()
        writing.start()
        inside.wait(PATIENCE_S)
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        assert await theirs.look()
        return time.monotonic() - began_s

    assert asyncio.run(take_over()) < 3.5  # before the server itself ends a transaction that stands still
    go_on.set()
    writing.join(PATIENCE_S)
    assert isinstance(refusals[0], Fenced)
    assert frozen.read_now(lambda c: streams.size(c, "a-1", "r-1", "s")) == 0
    frozen.close()
    other.close()


def failure_of(store: Store, operation: Callable[[Connection], object]) -> BaseException | None:
    try:
        store.write_now(operation)
    except StoreError as error:
        return error
    return None


def test_a_second_coordinator_on_an_sqlite_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    settings = {"TOKEN": TOKEN, "HOST": "127.0.0.1"}
    log = tmp_path / "log"
    with log.open("wb") as out:
        first = subprocess.Popen(
            [sys.executable, "-m", "coordinator"], env=environment(tmp_path, **settings), stderr=out
        )
    try:
        eventually(lambda: '"serving"' in log.read_text(), log.read_text)
        code, said = refused(tmp_path, **settings)
        assert code == 1 and len(said.splitlines()) == 1
        assert f"in use by another coordinator (pid {first.pid})" in said and "RANKCALL_DATABASE_URL" in said
        first.kill()
        first.wait(PATIENCE_S)
        with log.open("wb") as out:  # a claim ends with its process, however that ended
            first = subprocess.Popen(
                [sys.executable, "-m", "coordinator"], env=environment(tmp_path, **settings), stderr=out
            )
        eventually(lambda: '"serving"' in log.read_text(), log.read_text)
    finally:
        first.kill()
        first.wait(PATIENCE_S)
