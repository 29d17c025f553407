"""Who listens on a port of this machine: for messages about ports in use (`coordinator/__main__.py`, `up.py`, `doctor`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens; nothing but its socket may be visible. As text: `name (pid 123)`."""

    pid: int | None = None
    name: str | None = None
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        if "agent.proxy" in self.command:
            return f"the page of another replica on this machine (pid {self.pid}; each needs a RANKCALL_HOST of its own)"
        return f"{self.name} (pid {self.pid})" if self.name else f"pid {self.pid}"


def listener_on(port: int) -> Listener | None:
    """The listener on a TCP port of any address; None: nobody, or it cannot be seen."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.laddr[1:2] != (port,):
            continue
        if connection.pid is None:
            return Listener()
        try:
            process = psutil.Process(connection.pid)
            return Listener(connection.pid, process.name(), tuple(process.cmdline()))
        except psutil.Error:
            return Listener(connection.pid)
    return None


def listener_of(port: int) -> str | None:
    """The same in words."""
    found = listener_on(port)
    return None if found is None else str(found)
