"""A server in this process, on a port of its own, and a client without manners."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsnet.serve.app import application
from dsnet.serve.server import Server, bound, server_of
from dsnet.serve.state import State


@dataclass
class Running:
    """A server that runs on a thread."""

    server: Server
    port: int
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @property
    def state(self) -> State:
        return self.server.state

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON and headers of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            said = response.read()
            kind = response.headers.get("content-type", "")
            found = json.loads(said) if kind.startswith("application/json") else said
            return response.status, found, {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()

    def raw(self, *pieces: bytes) -> bytes:
        """What the server sends back to these bytes until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            for piece in pieces:
                connection.sendall(piece)
            found = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    found += chunk
            return found


@contextlib.contextmanager
def running(places: Mapping[str, Any], *, grace: float = 5.0, **options: Any) -> Iterator[Running]:
    app = application({name: str(place) for name, place in places.items()}, **options)
    started, listener = threading.Event(), bound("127.0.0.1", 0)
    server = server_of(app, grace=grace, on_start=started.set)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[server.serve(sockets=[listener])], daemon=True)
    thread.start()
    assert started.wait(60)
    found = Running(server, listener.getsockname()[1], loop, thread)
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        loop.close()
