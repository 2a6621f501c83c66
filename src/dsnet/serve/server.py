"""Runs the application with uvicorn: connections are limited and timed, and signals end or reload the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dsnet.serve.limits import Limits
from dsnet.serve.state import State

BACKLOG = 512
PIPELINED = 64  # requests that a client may send before it has the answer to the first
AHEAD = 1 << 20  # bytes of a body that are taken before the application reads them
OTHER_FILES = 256  # open files besides connections, at most
log = logging.getLogger("dsnet.serve")


class Connection(HttpToolsProtocol):
    """A connection that is closed if its request's headers do not come in time, or are too long, or if the client does
    not read its response, and refused if there are too many.

    The application limits the number of headers, and the time and the bytes of bodies.
    """

    limits = Limits()
    waiting: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None
    heading = 0  # bytes of the headers so far
    unheard = 0  # bytes that were neither the end of headers nor part of a body: the parser holds them

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            text = f"there are {len(self.connections)} connections, the limit is {self.limits.connections}"
            transport.write(plain_response(503, text, "Retry-After: 1\r\n"))
            transport.close()
            return
        self.wait()

    def wait(self) -> None:
        """Close the connection if no complete headers come in time."""
        self.stop_waiting()
        self.waiting = self.loop.call_later(self.limits.idle_seconds, self.too_slow)

    def stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def too_slow(self) -> None:
        if self.transport.get_write_buffer_size():  # closing would wait until the client reads it
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.unread is None:
            self.unread = self.loop.call_later(self.limits.idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_waiting_for_reader()

    def stop_waiting_for_reader(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def data_received(self, data: bytes) -> None:
        self.unheard += len(data)
        super().data_received(data)
        if self.unheard > self.limits.header_bytes:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.heading = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self.count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.heading >= 0:  # what follows a body in chunks is left out
            super().on_header(name, value)
            self.count(len(name) + len(value) + len(": \r\n"))

    def count(self, size: int) -> None:
        self.heading += size
        if self.heading > self.limits.header_bytes:
            raise ValueError("too long")  # becomes a response of 400

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many")
        super().on_headers_complete()
        self.heading, self.unheard = -1, 0
        self.stop_waiting()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body for the application, which reads it at once. uvicorn would pause after 64 kB of it,
        which costs more than reading them."""
        self.unheard = 0
        if not self.cycle.response_complete:
            self.cycle.body += body
            self.cycle.message_event.set()
            if len(self.cycle.body) > AHEAD:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.unheard = 0

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)  # the next request is here already
        super().on_response_complete()
        if not more and not self.transport.is_closing():
            self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        self.stop_waiting_for_reader()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        limit = self.limits.header_bytes
        why = f"this is not valid HTTP, its headers exceed {limit} bytes, or {PIPELINED} requests wait already"
        self.transport.write(plain_response(400, why))
        self.transport.close()


def plain_response(status: int, text: str, headers: str = "") -> bytes:
    """A response from outside of the application."""
    phrase = {400: "Bad Request", 503: "Service Unavailable"}[status]
    body = json.dumps({"error": text}).encode()
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{headers}Connection: close\r\n\r\n".encode() + body


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT, ends at the second, and opens the models again at SIGHUP."""

    def __init__(self, config: uvicorn.Config, state: State, grace: float, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self.state, self.grace, self.on_start = state, grace, on_start
        self.tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {signal.SIGTERM: self.end, signal.SIGINT: self.end}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda: self.start(self.state.reload())
        for number, handler in handlers.items():
            try:
                loop.add_signal_handler(number, handler)
            except NotImplementedError:  # Windows
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_start()

    def start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def end(self) -> None:
        """Drain; at once if it drains already."""
        if self.state.draining:
            os._exit(130)
        self.state.draining = True
        self.start(self.drain())

    async def drain(self) -> None:
        """Wait until all requests are answered, for `grace` seconds at most, while new ones are refused."""
        until = asyncio.get_running_loop().time() + self.grace
        await asyncio.sleep(min(0.1, self.grace))  # for requests that are on their way in
        while self.state.engine.answering and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        if left := self.state.engine.answering:
            log.error("%d requests were not answered within %g s", left, self.grace)
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A listening address; an OSError names it if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or the body of a response waits 40 ms for its headers
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        why = f"cannot listen on {host}:{port} ({error.strerror})"
        raise OSError(f"{why}; choose another --port, or a --host of this machine") from error
    return found


def address_of(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_of(app: Starlette, *, grace: float = 10.0, on_start: Callable[[], None] = lambda: None) -> Server:
    """A server for an application. on_start: is called once requests are taken."""
    state: State = app.state.serve
    limits = state.limits
    config = uvicorn.Config(
        app,
        http=type("Limited", (Connection,), {"limits": limits}),
        ws="none",
        loop="asyncio",
        timeout_keep_alive=max(1, int(limits.idle_seconds)),
        timeout_graceful_shutdown=1,
        backlog=BACKLOG,
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="on",
        proxy_headers=False,
    )
    return Server(config, state, grace, on_start)


def allow_files(connections: int) -> None:
    """Raise the limit of open files as far as so many connections need it and the system allows it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(server: Server, listener: socket.socket) -> None:
    """Serve until a signal ends it."""
    allow_files(server.state.limits.connections)
    asyncio.run(server.serve(sockets=[listener]))
