"""`python -m coordinator`: the service as a process. Started by `rankcall up` and `rankcall coordinator`.

Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 1 when the store cannot be used or the port is taken (which may pass:
`rankcall up` tries again), 2 when a setting is wrong. Each failure is one sentence on stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from fastapi import FastAPI

from coordinator import journal
from coordinator.api.wire import Doorman, protocol
from coordinator.app import create_app, stop_streaming
from coordinator.core import interrupt
from coordinator.core.whereabouts import http_url, reachable_address
from coordinator.limits import Limits
from coordinator.listeners import listener_of
from coordinator.settings import Settings, SettingsError
from coordinator.store import StoreError
from coordinator.store.engine import parsed
from coordinator.store.errors import name_of

log = structlog.get_logger(__name__)

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_INTERRUPTED = interrupt.INTERRUPTED

# uvicorn's 5 s would cut agents off between two reports; proxies in front close idle connections at 60 s and more.
KEEP_ALIVE_S = 75
# Requests still running after this are cut off at the end: agents and browsers repeat theirs.
GRACEFUL_S = 3
BACKLOG = 2048
# Python's cyclic collector stops everything for 0.1 s to walk what thousands of connections have made anew since it came
# last, and finds next to nothing: it comes when there is several times that much.
GC_THRESHOLDS = (400_000, 50, 100)


class CannotStart(Exception):
    """One sentence for a user, and the exit code."""

    def __init__(self, sentence: str, code: int = EXIT_SETTINGS) -> None:
        super().__init__(sentence)
        self.code = code


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends the process before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    """Serves until told to stop; returns the exit code."""
    interrupt.leave_at_once()
    try:
        settings = Settings.from_environment()
        journal.start(token.get_secret_value() for token in settings.secrets().values())
        _allow_many_connections()
        interrupt.raise_it()  # the store is opened from here on, and closed whatever comes
        with (
            bound(settings.bind_host, settings.port) as listener,
            asyncio.Runner(loop_factory=_event_loop()) as runner,
        ):
            return runner.run(serve(settings, listener))
    except SettingsError as error:
        print(f"rankcall coordinator: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except CannotStart as error:
        print(f"rankcall coordinator: {error}", file=sys.stderr)
        return error.code
    except StoreError as error:
        print(f"rankcall coordinator: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:  # before the service had its own handler
        return EXIT_INTERRUPTED
    finally:
        interrupt.leave_at_once()


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where the extra `fast` brought it (14 MB, of use with hundreds of replicas), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(settings: Settings, listener: socket.socket) -> int:
    """Runs the app on a socket that is bound already, until SIGTERM or SIGINT."""
    app = create_app(settings, url=_own_url(settings, listener))
    config = uvicorn.Config(
        app,
        http=protocol(Doorman(Limits(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
        ws="none",
        lifespan="off",  # entered here, so that a store that cannot be opened is one sentence
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = Server(config)
    async with app.router.lifespan_context(app):
        received = _stop_on_signals(server, app)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        host, port = listener.getsockname()[:2]
        log.info(
            "serving",
            address=host,
            port=port,
            tls=settings.tls_cert is not None,
            active=app.state.services is not None,
            store=name_of(parsed(settings.store_url)),
        )
        if settings.open_on_loopback:
            log.warning(
                "RANKCALL_TOKEN is not set: serving this machine only, and everybody on it is administrator"
            )
        await server.serve([listener])
    log.info("stopped")
    return EXIT_INTERRUPTED if signal.SIGINT in received else 0


def _own_url(settings: Settings, listener: socket.socket) -> str:
    """Where other coordinator processes reach this one."""
    host, port = listener.getsockname()[:2]
    if settings.address is not None:
        host = settings.address
    elif host in ("::", "0.0.0.0"):  # noqa: S104 - compared with, not bound
        host = reachable_address()
    return http_url(host, port, tls=settings.tls_cert is not None)


def _stop_on_signals(server: Server, app: FastAPI) -> list[signal.Signals]:
    """The first signal ends streams and waits for running requests; a second one waits for nothing."""
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        server.force_exit = bool(received)
        received.append(number)
        server.should_exit = True
        stop_streaming(app)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a console that closes ends nothing
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return received


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A listening address, before anything else is started. `::` takes IPv4 too, and is IPv4 where there is no IPv6.

    Raises:
        CannotStart: saying who has the port, or what is wrong with the address.
    """
    try:
        listener = _bind(host, port)
    except OSError as error:
        code = EXIT_FAILED if error.errno == errno.EADDRINUSE else EXIT_SETTINGS
        raise CannotStart(_sentence(error, host, port), code) from None
    with listener:
        yield listener


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError:
        if host != "::":
            raise
        return _bind("0.0.0.0", port)  # noqa: S104 - every address is what `::` means
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if host == "::" and error.errno == errno.EADDRNOTAVAIL:  # IPv6 is compiled in, but switched off
            return _bind("0.0.0.0", port)  # noqa: S104
        raise
    listener.setblocking(False)
    return listener


def _sentence(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"RANKCALL_HOST={host} is no address of this machine"
    if error.errno == errno.EADDRINUSE:
        holder = listener_of(port) or "another process"
        return f"port {port} is taken by {holder}; set RANKCALL_PORT to a free one, or end what listens there"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"RANKCALL_HOST={host} is no address of this machine"
    if error.errno == errno.EACCES:
        return f"port {port} may only be opened by root; set RANKCALL_PORT to one above 1023"
    return f"cannot listen on {host} port {port}: {error.strerror}"


def _allow_many_connections() -> None:
    """Lifts the limit of open files as far as it goes: every agent holds a connection or two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
