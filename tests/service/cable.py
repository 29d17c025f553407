"""A TCP connection that can be cut as a network cuts it: nobody is told, and nothing passes any more."""

from __future__ import annotations

import selectors
import socket
import threading


class Cable:
    """Leads from a port of this machine to another one; use it in a `with`."""

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._whole = threading.Event()
        self._whole.set()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._whole.set()
        self._listener.close()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        self._whole.wait()
        with near, socket.create_connection(self._to) as far, selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while not self._closing:
                for key, _ in ready.select(1.0):
                    try:
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        self._whole.wait()
                        if not data:
                            return
                        key.data.sendall(data)
                    except OSError:
                        return
