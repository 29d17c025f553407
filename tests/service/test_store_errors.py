"""A store that cannot be used says which, why, and what to do; what was acknowledged before stays."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from postgresql import Server
from sqlalchemy import Connection

from coordinator.store import Store, StoreError, queries, streams


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("no url at all", "RANKCALL_DATABASE_URL is not a database URL; write sqlite:"),
        ("mysql://root@localhost/x", "'mysql'; rankcall stores in SQLite or PostgreSQL"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_a_url_that_names_no_usable_database_is_refused_with_the_way_to_write_one(
    url: str, says: str
) -> None:
    with pytest.raises(StoreError, match=r"RANKCALL_DATABASE_URL") as caught:
        Store.open(url)
    assert says in str(caught.value)


def test_a_folder_that_is_a_file_and_a_file_that_is_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"/file/x\.db cannot be opened: /.*/file is not a folder; check RANKCALL_STATE_DIR"
    ):
        Store.open(f"sqlite:///{tmp_path}/file/x.db")
    with pytest.raises(StoreError, match="cannot be opened: Is a directory"):
        Store.open(f"sqlite:///{tmp_path}")


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rankcall.db"
    path.write_bytes(b"my thesis, the only copy\n" * 200)
    with pytest.raises(StoreError, match=r"rankcall\.db cannot be used: the file is not a rankcall store"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == b"my thesis, the only copy\n" * 200


def test_a_damaged_store_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rankcall.db"
    Store.open(f"sqlite:///{path}").close()
    content = bytearray(path.read_bytes())
    content[2000:] = os.urandom(len(content) - 2000)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="the file is damaged"):
        Store.open(f"sqlite:///{path}")


def test_a_store_that_another_process_will_not_let_go_of_is_said_to_be_locked(tmp_path: Path) -> None:
    path = tmp_path / "rankcall.db"
    store = Store.open(f"sqlite:///{path}", lock_wait_s=0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"another process is writing to it .*end the other coordinator"):
        store.write_now(lambda c: queries.update_job(c, "x", state="failed"))
    assert store.read_now(queries.open_jobs) == []
    other.close()
    assert not store.write_now(lambda c: queries.update_job(c, "x", state="failed"))
    store.close()


def test_the_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/state/coordinator/rankcall.db")
    store.write_now(lambda c: streams.append(c, "a-1", "r-1", "s", 0, b"x"))
    folder = tmp_path / "state" / "coordinator"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert files == {"rankcall.db": 0o600, "rankcall.db-wal": 0o600, "rankcall.db-shm": 0o600}
    store.close()


def append(store: Store, offset: int, data: bytes) -> streams.Appended:
    return store.write_now(lambda c: streams.append(c, "a-1", "r-1", "s", offset, data))


def test_a_full_disk_refuses_what_is_new_keeps_what_was_acknowledged_and_can_be_freed(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    store = Store.open(f"sqlite:///{small_disk}/rankcall.db")
    acknowledged = b""
    with pytest.raises(StoreError, match=r"the disk is full.*free some space there"):
        for number in range(200):
            data = bytes([number]) * 20_000
            append(store, len(acknowledged), data)
            acknowledged += data
    assert len(acknowledged) > 200_000

    def whole() -> bytes:
        return store.read_now(lambda c: streams.read(c, "a-1", "r-1", "s", 0, 1 << 30))

    assert whole() == acknowledged
    ballast.unlink()
    assert append(store, len(acknowledged), b"more") == (len(acknowledged) + 4, True)
    assert whole() == acknowledged + b"more"
    store.close()


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nothing else can be there
        url = f"postgresql://me:secret@127.0.0.1:{taken.getsockname()[1]}/runs"
        with pytest.raises(
            StoreError, match=r"no server listens there.*correct RANKCALL_DATABASE_URL"
        ) as caught:
            Store.open(url)
    assert "secret" not in str(caught.value)


def test_a_database_or_user_that_is_not_there_is_named(postgresql: Server) -> None:
    url = postgresql.database()
    with pytest.raises(StoreError, match=r'no such database or user.*"absent" does not exist'):
        Store.open(url.rpartition("/")[0] + "/absent")
    with pytest.raises(StoreError, match=r'no such database or user.*"nobody" does not exist'):
        Store.open(url.replace("postgres@", "nobody@"))


def test_a_server_on_which_another_coordinator_will_not_let_go_is_said_to_be_locked(
    postgresql: Server,
) -> None:
    url = postgresql.database()
    store, other = Store.open(url, lock_wait_s=0.2), Store.open(url)
    entered, go = threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        entered.set()
        go.wait(20)

    holder = threading.Thread(target=other.write_now, args=(hold,))
    holder.start()
    entered.wait(20)
    with pytest.raises(StoreError, match="another process is writing to it"):
        append(store, 0, b"x")
    go.set()
    holder.join()
    assert append(store, 0, b"x") == (1, True)
    store.close()
    other.close()
