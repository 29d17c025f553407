"""A real PostgreSQL server for the tests: in a temporary folder, on a free port, gone with the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path

import psycopg

START_S = 30.0
_ACCOUNT = "postgres"


class Server:
    """Use as a context manager; `database()` makes an empty database and returns its URL."""

    def __init__(self) -> None:
        self._binaries = _binaries()
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self._folder = Path(tempfile.mkdtemp(prefix="rankcall-pg-"))
        if os.geteuid() == 0:
            shutil.chown(self._folder, _ACCOUNT, _ACCOUNT)
        try:
            self._run(
                "initdb", "-D", str(self.data), "-U", _ACCOUNT, "-A", "trust", "-E", "UTF8", "--no-sync"
            )
            self.port = _free_port()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._as_account(
                    str(self._binaries / "postgres"), "-D", str(self.data), "-p", str(self.port),
                    "-k", str(self._folder), "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=50",
                ),
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self._dsn("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self._folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server at once, as a crash would."""
        if self._process is not None:
            # Immediate shutdown; setpriv has replaced itself, so this pid is the server's own.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=START_S)
            self._process = None

    def database(self) -> str:
        name = f"rankcall_{next(self._numbers)}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{_ACCOUNT}@127.0.0.1:{self.port}/{name}"

    def execute(self, url: str, statement: str) -> None:
        """Run one statement on a connection of its own."""
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement)

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={_ACCOUNT} dbname={database}"

    def _run(self, program: str, *arguments: str) -> None:
        argv = self._as_account(str(self._binaries / program), *arguments)
        done = subprocess.run(argv, check=False, cwd=self._folder, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr)

    def _as_account(self, *argv: str) -> list[str]:
        # The server refuses to run as root. It ends with its parent, also when that is killed.
        account = ["--reuid", _ACCOUNT, "--regid", _ACCOUNT, "--init-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *account, "--pdeathsig", "QUIT", *argv]


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise RuntimeError("no PostgreSQL server is installed here: apt-get install postgresql")
    return Path(on_path).resolve().parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
