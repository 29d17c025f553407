"""What a replica has only once: its state folder and its port. `up.py` claims both before it starts anything."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
from collections.abc import Iterator
from pathlib import Path

from coordinator.core.clock import monotonic_s
from coordinator.listeners import listener_of


class CannotStart(Exception):
    """`rankcall up` has no business running here; the text says why and what to do.

    Attributes:
        code: the exit code: 2 for a setting that cannot be, 1 for what somebody else has at present.
    """

    def __init__(self, why: str, code: int = 2) -> None:
        super().__init__(why)
        self.code = code


@contextlib.contextmanager
def claimed(state: Path) -> Iterator[None]:
    """This supervisor alone uses the state folder.

    Raises:
        CannotStart: when the folder cannot be written, or another supervisor uses it.
    """
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (state / "up.lock").open("w")
    except OSError as error:
        raise CannotStart(
            f"the state folder {state} cannot be written ({error.strerror or error}); "
            "set RANKCALL_STATE_DIR to a folder on this container's own disk"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(
                f"another `rankcall up` uses {state}; one replica runs one. "
                "Several on one machine need a RANKCALL_STATE_DIR each",
                code=1,
            ) from None
        yield


def check_port(host: str, port: int, wait_s: float) -> None:
    """Refuses a port that somebody else listens on, after giving a predecessor time to let go of it.

    Raises:
        CannotStart: naming the port, and who holds it where that can be seen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    give_up_s = monotonic_s() + wait_s
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise CannotStart(
                        f"{host} port {port} cannot be served: {error.strerror}; see RANKCALL_HOST and RANKCALL_PORT"
                    ) from None
        if monotonic_s() >= give_up_s:
            holder = listener_of(port)
            by = f" by {holder}" if holder else ""
            raise CannotStart(
                f"port {port} is in use{by}; set RANKCALL_PORT to another one, or end that process", code=1
            )
        select.select([], [], [], 0.2)
