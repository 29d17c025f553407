"""Who listens on a port of this machine: for messages about ports in use, in `up.py` and `rankcall doctor`."""

from __future__ import annotations


def listener_of(port: int) -> str | None:
    """The listener as `name (pid 123)`; `another process` where only its socket can be seen; None: nobody."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.laddr[1:2] != (port,):
            continue
        if connection.pid is None:
            return "another process"
        try:
            return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
        except psutil.Error:
            return f"pid {connection.pid}"
    return None
