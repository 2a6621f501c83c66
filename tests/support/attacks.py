"""Requests that are wrong in many ways, as the bytes of a connection, and a judge of how a server receives them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import logging
import random
import re
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from support.mutations import garbled, mangled, written, wrong_values

REFUSALS = {400, 401, 404, 405, 408, 413, 415, 431, 503}
OUTCOMES = ("answered", "refused", "closed")
LENGTH = "Inference-Header-Content-Length"
HOST = "127.0.0.1"
SECONDS = 60  # until a connection counts as forgotten


def request(
    path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, method: str = "POST", size: int = -1
) -> bytes:
    """The bytes of a request. size: what it says its body has, if that is not true."""
    given = {"Host": "x", "Content-Length": str(len(body) if size < 0 else size), "Connection": "close"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**given, **(headers or {})}.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def sent(port: int, *pieces: bytes) -> bytes:
    """All that the server sends back until it closes the connection. A timeout means that it forgot about it."""
    with socket.create_connection((HOST, port), timeout=SECONDS) as connection:
        found = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                found += chunk
        return found


def status_of(response: bytes) -> int:
    """The status of a response; 0 if there is none."""
    words = response.split(b" ", 2)
    return int(words[1]) if response.startswith(b"HTTP/1.1 ") and len(words) > 2 else 0


def judged(response: bytes) -> str:
    """answered, refused, closed, or what broke the law. Garbled bytes may be two requests, with two responses."""
    if not response:
        return "closed"
    status, (head, _, rest) = status_of(response), response.partition(b"\r\n\r\n")
    size = re.search(rb"\ncontent-length: (\d+)", head, flags=re.IGNORECASE)
    if size is None or len(rest) < int(size[1]):
        return f"a response that is cut: {response[:300]!r}"
    body, rest = rest[: int(size[1])], rest[int(size[1]) :]
    if status != 200 and status not in REFUSALS:
        return f"status {status}: {response[:300]!r}"
    try:
        good = status == 200 or list(json.loads(body)) == ["error"]
    except ValueError:
        good = False
    if not good:
        return f"an error that is not JSON: {response[:300]!r}"
    after = judged(rest)
    return after if after not in OUTCOMES else "answered" if status == 200 else "refused"


@dataclass
class Verdict:
    """How many requests were answered, refused or closed, and what broke the law."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def judge(port: int, cases: Sequence[tuple[str, bytes]], *, threads: int = 8) -> Verdict:
    """Send every case. Only what is not HTTP any more may be closed without an answer."""

    def one(case: tuple[str, bytes]) -> str:
        kind, data = case
        try:
            found = judged(sent(port, data))
        except OSError as error:
            return f"{kind}: {error!r}: {data[:300]!r}"
        if found == "closed" and kind != "http":
            return f"{kind}: closed without an answer: {data[:300]!r}"
        return found if found in OUTCOMES else f"{kind}: {found} to {data[:300]!r}"

    verdict = Verdict()
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(one, cases):
            good = found in OUTCOMES
            verdict.counts[found if good else "broken"] += 1
            if not good:
                verdict.broken.append(found)
    return verdict


@contextlib.contextmanager
def errors_logged() -> Iterator[list[str]]:
    """What is logged as an error: tracebacks of the server."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    keep = Keep(logging.ERROR)
    names = (None, "uvicorn", "uvicorn.error", "asyncio")
    for name in names:
        logging.getLogger(name).addHandler(keep)
    try:
        yield found
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(keep)


def resident(process: int | str = "self") -> float:
    """Memory of a process, in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024


# Good requests, and what is done to them


def pictures() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 17, 3), np.uint8)
    found = []
    for kind, mode in (("PNG", "RGB"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("GIF", "P"), ("PNG", "RGBA"), ("TIFF", "L")):
        Image.fromarray(pixels).convert(mode).save(out := io.BytesIO(), kind)
        found.append(out.getvalue())
    return found


def form(files: Sequence[bytes], **fields: str) -> tuple[bytes, dict[str, str]]:
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    parts += [f'name="f"; filename="{k}.png"\r\n\r\n'.encode() + data for k, data in enumerate(files)]
    body = b"".join(b"--edge\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=edge"}


def tensor(shape: Sequence[int], datatype: str, rng: random.Random) -> tuple[dict[str, Any], np.ndarray]:
    """An input for an inference request, without its data, and the data."""
    noise = np.random.default_rng(rng.randrange(1 << 30))
    x = noise.integers(0, 256, shape).astype(np.uint8) if datatype == "UINT8" else noise.normal(size=shape)
    return {"name": "image", "shape": list(shape), "datatype": datatype}, x.astype(
        np.uint8 if datatype == "UINT8" else np.float32
    )


ASKS: list[dict[str, Any]] = [{}, {"budget": 0.5}, {"path": "2"}, {"max_width": 1, "deadline_ms": 5000}]
ASKS += [{"budget": "50%", "min_budget": 0.2, "binary_data_output": True}, {"latency_ms": 5}]


class Mutator:
    """Mutated requests. inputs: name, shape and type of the input of each model."""

    def __init__(self, inputs: Sequence[tuple[str, Sequence[int], str]], seed: int) -> None:
        self.inputs, self.rng, self.pictures = inputs, random.Random(seed), pictures()
        self.kinds: list[tuple[str, Callable[[], bytes]]] = [
            ("json", self.wrong_json),
            ("json", self.wrong_json),
            ("binary", self.wrong_binary),
            ("picture", self.wrong_picture),
            ("form", self.wrong_form),
            ("query", self.wrong_query),
            ("coding", self.wrong_coding),
            ("headers", self.wrong_headers),
            ("path", self.wrong_path),
            ("http", self.wrong_http),
        ]

    def cases(self, count: int) -> list[tuple[str, bytes]]:
        found = []
        for number in range(count):
            kind, make = self.kinds[number % len(self.kinds)]
            found.append((kind, make()))
        return found

    def question(self, *, binary: bool) -> tuple[str, dict[str, Any], np.ndarray]:
        """The path, the JSON and the data of a good inference request."""
        model, shape, datatype = self.rng.choice(self.inputs)
        about, x = tensor(shape, datatype, self.rng)
        about |= {"parameters": {"binary_data_size": x.nbytes}} if binary else {"data": x.ravel().tolist()}
        said: dict[str, Any] = {"id": "7", "parameters": dict(self.rng.choice(ASKS)), "inputs": [about]}
        if self.rng.random() < 0.3:
            said["outputs"] = [{"name": "path", "parameters": {"binary_data": True}}, {"name": "madds"}]
        return f"/v2/models/{model}/infer", said, x

    def good(self) -> tuple[str, bytes, dict[str, str]]:
        """Path, body and headers of a request with nothing wrong."""
        match self.rng.randrange(4):
            case 0:
                return f"/predict?top=1&model={self.rng.choice(self.inputs)[0]}", self.rng.choice(self.pictures), {}
            case 1:
                return ("/predict", *form(self.rng.sample(self.pictures, 2), budget="0.5"))
            case 2:
                path, said, _ = self.question(binary=False)
                return path, json.dumps(said).encode(), {}
            case _:
                path, said, x = self.question(binary=True)
                head = json.dumps(said).encode()
                return path, head + x.tobytes(), {LENGTH: str(len(head))}

    def wrong_json(self) -> bytes:
        path, said, _ = self.question(binary=False)
        return request(path, written(mangled(said, self.rng)).encode())

    def wrong_binary(self) -> bytes:
        path, said, x = self.question(binary=True)
        head, data = written(mangled(said, self.rng)).encode(), x.tobytes()
        if self.rng.random() < 0.3:
            data = garbled(data, self.rng)
        return request(path, head + data, {LENGTH: str(len(head))})

    def wrong_picture(self) -> bytes:
        return request(
            f"/predict?model={self.rng.choice(self.inputs)[0]}", garbled(self.rng.choice(self.pictures), self.rng)
        )

    def wrong_form(self) -> bytes:
        fields = {self.rng.choice(("budget", "top", "", "x")): str(wrong_values(self.rng))[:300]}
        body, headers = form(self.rng.sample(self.pictures, 2), **fields)
        if self.rng.random() < 0.3:
            headers["Content-Type"] = self.line(headers["Content-Type"])
        return request("/predict", garbled(body, self.rng), headers)

    def wrong_query(self) -> bytes:
        names = ("budget", "min_budget", "latency_ms", "max_width", "path", "deadline_ms", "top", "confidence", "model")
        asked = {self.rng.choice((*names, "other")): str(wrong_values(self.rng))[:300] for _ in range(2)}
        query = "&".join(f"{quote(name)}={quote(value)}" for name, value in asked.items())
        return request(f"/predict?{query}", self.rng.choice(self.pictures))

    def wrong_coding(self) -> bytes:
        path, body, headers = self.good()
        coding = self.rng.choice(("gzip", "deflate", "br", "gzip, gzip", "identity"))
        packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(coding, bytes)(body)
        if self.rng.random() < 0.7:
            packed = garbled(packed, self.rng)
        return request(path, packed, {**headers, "Content-Encoding": coding, "Accept-Encoding": self.line("gzip")})

    def wrong_headers(self) -> bytes:
        path, body, headers = self.good()
        names = (LENGTH, "Content-Type", "Content-Encoding", "Accept-Encoding", "Authorization", "Accept", "Range")
        for _ in range(self.rng.choice((1, 2, 80))):
            name = self.rng.choice((*names, f"X-{self.rng.randrange(1000)}"))
            headers[name] = self.line(str(wrong_values(self.rng))[:100])
        return request(path, body, headers)

    def wrong_path(self) -> bytes:
        path, body, headers = self.good()
        wrong = quote(garbled(path.encode(), self.rng)[:300], safe="/?=&%")
        method = self.rng.choice(("POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "BREW"))
        return request(f"/{wrong}", body, headers, method=method)

    def wrong_http(self) -> bytes:
        path, body, headers = self.good()
        said = request(path, body[:2000], headers)
        head, split, rest = said.partition(b"\r\n\r\n")
        return garbled(head + split, self.rng) + rest if self.rng.random() < 0.7 else garbled(said, self.rng)

    def line(self, text: str) -> str:
        """A header's value that is still one line."""
        wrong = garbled(text.encode(), self.rng) if text else b""
        return "".join(chr(byte) for byte in wrong if 32 < byte < 127) or "x"


# Load


class Load:
    """Requests at a steady rate over connections that are kept, whether the server keeps up or not."""

    def __init__(self, port: int, said: bytes, rate: float, *, connections: int = 96) -> None:
        self.port, self.said, self.gap, self.connections = port, said, 1 / rate, connections
        self.counts: Counter[int] = Counter()

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.next, self.end = loop.time(), loop.time() + seconds
        await asyncio.gather(*(self.client() for _ in range(self.connections)))

    async def client(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        loop = asyncio.get_running_loop()
        while (at := max(self.next, loop.time() - 1.0)) < self.end:  # what is more than a second late is left out
            self.next = at + self.gap
            await asyncio.sleep(at - loop.time())
            writer.write(self.said)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"\ncontent-length: (\d+)", head, flags=re.IGNORECASE)
            await reader.readexactly(int(size[1]) if size else 0)
            self.counts[status_of(head)] += 1
        writer.close()
