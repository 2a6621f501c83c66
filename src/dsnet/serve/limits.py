"""What a request may ask of the server, and the error that it gets beyond that."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from dsnet.errors import must

CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
MEGA = 1 << 20
PATIENCE = 2.0  # seconds that the rest of a refused body is read
LEAST_TOKEN = 16  # characters


class Refusal(Exception):
    """A request that is not answered. The message names the value and the limit; it is sent as JSON."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Args:
        body: Bytes of a request's body, also after it was decompressed.
        json: Bytes of JSON in a body, and about as many in an answer of the inference protocol. Reading and writing
            JSON keeps other requests waiting; binary tensors are copied at once.
        held: Bytes of all bodies together.
        pixels: Pixels of a picture.
        images: Images of a request.
        queue: Images that wait.
        headers: Number of headers of a request.
        header_bytes: Bytes of all headers of a request.
        connections: Number of open connections.
        idle_seconds: Time that a connection may take to send its headers, and that it may be idle.
        body_seconds: Time that a body may take to arrive.
        deadline_ms: The deadline of requests that name none.
        longest_ms: The longest deadline that a request may name.
    """

    body: int = 64 * MEGA
    json: int = 8 * MEGA
    held: int = 1024 * MEGA
    pixels: int = 50_000_000
    images: int = 64
    queue: int = 2048
    headers: int = 64
    header_bytes: int = 16384
    connections: int = 1024
    idle_seconds: float = 20.0
    body_seconds: float = 30.0
    deadline_ms: float = 250.0
    longest_ms: float = 60_000.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            must(f"the limit {one.name}", value, value > 0, "be positive")
        most = self.longest_ms
        must("the deadline", f"{self.deadline_ms:g} ms", self.deadline_ms <= most, f"be at most {most:g} ms")


class Held:
    """Counts the bytes of all bodies that the server holds."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0

    def take(self, count: int) -> None:
        if self.bytes + count > self.limit:
            raise Refusal(
                503,
                f"the server holds {self.bytes} bytes of requests, and {count} more exceed its limit of {self.limit}",
                {"Retry-After": "1"},
            )
        self.bytes += count

    def free(self, count: int) -> None:
        self.bytes -= count


class Body:
    """The body of a request, for as long as the request is answered."""

    def __init__(self, request: Request, limits: Limits, held: Held) -> None:
        self.request, self.limits, self.held, self.taken = request, limits, held, 0

    async def __aenter__(self) -> bytes:
        try:
            return await self.read()
        except BaseException:
            self.held.free(self.taken)
            raise

    async def __aexit__(self, *_: object) -> None:
        self.held.free(self.taken)

    async def read(self) -> bytes:
        limits, request = self.limits, self.request
        stated = request.headers.get("content-length", "0")
        if stated.isascii() and stated.isdigit() and int(stated) > limits.body:
            raise await self.too_large(stated)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in (*CODINGS, "identity"):
            raise Refusal(415, f"content-encoding {coding[:40]!r} is unknown; use {', '.join(CODINGS)} or none")
        chunks, size = [], 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limits.body:
                        raise await self.too_large(f"more than {limits.body}")
                    self.take(len(chunk))
                    chunks.append(chunk)
        except TimeoutError:
            raise Refusal(
                408,
                f"{size} bytes of the body came within {limits.body_seconds:g} s, which is the limit; send it faster",
                {"Connection": "close"},
            ) from None
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if coding == "identity" or not body:
            return body
        plain = await asyncio.to_thread(decompressed, body, coding, limits.body)
        self.take(len(plain))
        return plain

    async def too_large(self, size: str) -> Refusal:
        """The refusal of a large body. Some of it is read, because many clients hear nothing before they sent all,
        except for those that ask before they send it."""
        left = 0 if "expect" in self.request.headers else self.limits.body
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(PATIENCE):
                while left > 0 and (message := await self.request.receive()).get("more_body"):
                    left -= len(message["body"])
        return too_large(size, self.limits.body)

    def take(self, count: int) -> None:
        self.held.take(count)
        self.taken += count


def too_large(size: str, limit: int) -> Refusal:
    return Refusal(413, f"the body has {size} bytes, the limit is {limit}; send fewer images", {"Connection": "close"})


def decompressed(body: bytes, coding: str, limit: int) -> bytes:
    """The body without its compression. It is never larger than the limit, whatever the body claims to be."""
    reader = zlib.decompressobj(CODINGS[coding])
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error:
        if coding != "deflate":
            raise Refusal(400, f"the body is not valid {coding}; compress it again, or send it plain") from None
        return bare_deflate(body, limit)
    return checked(reader, plain, coding, limit)


def bare_deflate(body: bytes, limit: int) -> bytes:
    """Some clients leave out the header that deflate should have."""
    reader = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error:
        raise Refusal(400, "the body is not valid deflate; compress it again, or send it plain") from None
    return checked(reader, plain, "deflate", limit)


def checked(reader: zlib._Decompress, plain: bytes, coding: str, limit: int) -> bytes:
    if len(plain) > limit:
        raise too_large(f"more than {limit}", limit)
    if not reader.eof:
        raise Refusal(400, f"the body ends in the middle of its {coding}; send all of it")
    if reader.unused_data:
        raise Refusal(400, f"{len(reader.unused_data)} bytes follow the {coding} of the body; send one stream")
    return plain


def read_token(file: str | Path) -> bytes:
    """The bearer token in a file."""
    token = Path(file).read_bytes().strip()
    must(f"the token in {file}", f"{len(token)} characters", len(token) >= LEAST_TOKEN, f"have at least {LEAST_TOKEN}")
    return token


def check_token(request: Request, token: bytes | None) -> None:
    """Refuse a request without the server's token. Comparing takes as long for a wrong token as for the right one."""
    if token is None:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)
    if kind.lower() != "bearer" or not right:
        raise Refusal(
            401,
            "this server wants a token; send the header Authorization: Bearer TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )


def check_headers(request: Request, limits: Limits) -> None:
    if (count := len(request.headers)) > limits.headers:
        raise Refusal(431, f"the request has {count} headers, the limit is {limits.headers}")
