"""A coordinator for tests: the real app behind a real uvicorn on a free port, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import uvicorn
from pydantic import SecretStr

from coordinator.__main__ import Server, bound
from coordinator.api.services import Services
from coordinator.api.wire import Doorman, protocol
from coordinator.app import create_app, stop_streaming
from coordinator.limits import Limits
from coordinator.settings import Settings

TOKEN = "admin-token-of-the-tests"
VIEWER_TOKEN = "viewer-token-of-the-tests"

# For tests in which one address asks for everybody.
MANY = Limits(guesses=10_000, requests=1_000_000)


T = TypeVar("T")


class Coordinator:
    """Use `running`. `call` runs something in the coordinator's own event loop."""

    def __init__(self, settings: Settings, limits: Limits | None = None) -> None:
        self.settings = settings
        self._limits = limits or Limits()
        self.app = create_app(settings, self._limits)
        self.url = ""
        self._ready = threading.Event()
        self._stop: Callable[[], None] = lambda: None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    def call(self, function: Callable[[], T]) -> T:
        """The function's result, run in the loop between two of its steps."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def client(
        self,
        token: str | None = TOKEN,
        *,
        headers: dict[str, str] | None = None,
        cookies: dict[str, str] | None = None,
    ) -> httpx.Client:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.url,
            headers={**bearer, **(headers or {})},
            cookies=cookies,
            timeout=30,
            trust_env=False,
            verify=False,  # certificates take 0.2 s to load and there is no TLS here
        )

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(60)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Waits for the end; harmless when it has ended."""
        if self._thread.is_alive():
            self._stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the coordinator does not stop"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with bound("127.0.0.1", 0) as listener:
                asyncio.run(self._serve(listener))
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self.app,
            lifespan="off",
            http=protocol(Doorman(self._limits, 1024)),
            log_config=None,
            access_log=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=3,
        )
        server = Server(config)

        def stop() -> None:
            server.should_exit = True
            stop_streaming(self.app)

        self._stop = lambda: self._loop.call_soon_threadsafe(stop)  # type: ignore[assignment,return-value]
        async with self.app.router.lifespan_context(self.app):
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._loop.call_later(0, self._ready.set)
            await server.serve([listener])


@contextmanager
def running(
    state_dir: Path,
    *,
    token: str | None = TOKEN,
    viewer_token: str | None = VIEWER_TOKEN,
    previous_token: str | None = None,
    nodes: int | None = 2,
    limits: Limits | None = None,
    trusted_proxies: tuple[str, ...] = (),
    axolotl_wait_s: float = 0.0,
) -> Iterator[Coordinator]:
    """A coordinator that serves for the length of a `with` block."""
    coordinator = Coordinator(
        Settings(
            token=SecretStr(token) if token else None,
            viewer_token=SecretStr(viewer_token) if token and viewer_token else None,
            previous_token=SecretStr(previous_token) if previous_token else None,
            nodes=nodes,
            state_dir=state_dir,
            host="127.0.0.1",
            port=0,
            trusted_proxies=trusted_proxies,
            axolotl_wait_s=axolotl_wait_s,
        ),
        limits,
    )
    coordinator.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()
