"""An open-loop load on a server: requests go out at their times, whether earlier ones were answered or not."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import mean
from typing import Any

import numpy as np

HOST = "127.0.0.1"
CONNECTIONS = 512  # a request that finds all of them waiting is not sent, and counts as unanswered
KEPT = 32  # connections that are open before the load begins
AFTER = 3.0  # seconds after the last request for which answers are awaited
LENGTH = b"inference-header-content-length"
Span = tuple[float, float]  # seconds, and requests per second


def bursts(seconds: float, base: float, peak: float, seed: int = 0) -> list[Span]:
    """A load that rests at `base` requests per second and now and then jumps to `peak` for a second or so."""
    rng, spans = random.Random(seed), [(2.0, base)]
    while sum(span for span, _ in spans) < seconds:
        spans += [(rng.uniform(0.5, 1.5), peak), (rng.uniform(2.5, 4.0), base)]
    return spans


def arrivals(spans: Sequence[Span], seed: int = 0, most: int = 20_000) -> list[float]:
    """Random times at which requests come, at the rate of each span, `most` at most."""
    rng, found, begin = random.Random(seed), list[float](), 0.0
    for seconds, rate in spans:
        now = begin
        while rate > 0 and (now := now + rng.expovariate(rate)) < begin + seconds and len(found) < most:
            found.append(now)
        begin += seconds
    return found


def infer_request(model: str, images: np.ndarray, parameters: dict[str, Any]) -> bytes:
    """A request of the Open Inference Protocol with binary tensors, as it goes over the wire."""
    data = np.ascontiguousarray(images, "<f4").tobytes()
    about = {"name": "image", "datatype": "FP32", "shape": list(images.shape)}
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in ("logits", "madds")]
    said = {
        "inputs": [{**about, "parameters": {"binary_data_size": len(data)}}],
        "outputs": wanted,
        "parameters": parameters,
    }
    head = json.dumps(said).encode()
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {HOST}",
        f"{LENGTH.decode()}: {len(head)}",
        f"Content-Length: {len(head) + len(data)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + head + data


@dataclass(frozen=True)
class Question:
    """A request, and the classes of its images."""

    said: bytes
    labels: tuple[int, ...]


@dataclass
class Reply:
    """What became of a request. Times are seconds since the load began; status 0 is no answer at all."""

    question: Question
    at: float
    sent: float = math.inf
    done: float = math.inf
    status: int = 0
    budget: float = 0.0
    madds: tuple[int, ...] = ()
    right: int = 0

    @property
    def seconds(self) -> float:
        """From when the request was due: a generator that is late must not make the server look quick."""
        return self.done - self.at

    def read(self, head: bytes, body: bytes) -> None:
        """Take in a response."""
        self.status = int(head[9:12])
        if self.status != 200:
            return
        (size,) = (line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(LENGTH))
        said = json.loads(body[: int(size)])
        logits, _ = said["outputs"]
        cut = int(size) + logits["parameters"]["binary_data_size"]
        scores = np.frombuffer(body[int(size) : cut], "<f4").reshape(logits["shape"])
        self.madds = tuple(np.frombuffer(body[cut:], "<i8").tolist())
        self.right = int((scores.argmax(1) == np.asarray(self.question.labels)).sum())
        self.budget = said["parameters"]["budget"]


class Connection(asyncio.Protocol):
    """A connection with at most one request under way. done: is told when it is answered, or when it is lost."""

    def __init__(self, done: Callable[[Connection, bytes, bytes], None]) -> None:
        self.done, self.held, self.lost = done, bytearray(), False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.held += data
        end = self.held.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self.held[:end])
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        if len(self.held) >= end + int(size[15:]):
            body, self.held = bytes(self.held[end:]), bytearray()
            self.done(self, head, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.done(self, b"", b"")


async def send(port: int, questions: Sequence[Question], times: Sequence[float]) -> list[Reply]:
    """Send the questions, over and over, each at its time. Responses are read after the load is over."""
    loop = asyncio.get_running_loop()
    replies = [Reply(questions[number % len(questions)], at) for number, at in enumerate(times)]
    waiting, free, heard = dict[Connection, Reply](), list[Connection](), list[tuple[Reply, bytes, bytes]]()
    everything = set[Connection]()

    def done(connection: Connection, head: bytes, body: bytes) -> None:
        reply = waiting.pop(connection, None)
        if connection.lost:
            everything.discard(connection)
            if connection in free:
                free.remove(connection)
            return
        free.append(connection)
        if reply is not None:
            reply.done = loop.time() - began
            heard.append((reply, head, body))

    async def opened() -> Connection:
        _, connection = await loop.create_connection(lambda: Connection(done), HOST, port)
        everything.add(connection)
        return connection

    def start(connection: Connection, reply: Reply) -> None:
        reply.sent = loop.time() - began
        waiting[connection] = reply
        connection.transport.write(reply.question.said)

    async def on_a_new_one(reply: Reply) -> None:
        start(await opened(), reply)

    free += [await opened() for _ in range(KEPT)]
    began, tasks = loop.time() + 0.05, set[asyncio.Task[None]]()
    for reply in replies:
        if (left := began + reply.at - loop.time()) > 0:
            await asyncio.sleep(left)
        if free:
            start(free.pop(), reply)
        elif len(everything) + len(tasks) < CONNECTIONS:
            tasks.add(task := asyncio.create_task(on_a_new_one(reply)))
            task.add_done_callback(tasks.discard)
    until = loop.time() + AFTER
    while (waiting or tasks) and loop.time() < until:
        await asyncio.sleep(0.02)
    for connection in list(everything):
        connection.transport.abort()
    for reply, head, body in heard:
        reply.read(head, body)
    return replies


async def saturate(port: int, questions: Sequence[Question], seconds: float, connections: int = 4) -> float:
    """Images per second that are answered if every connection asks again as soon as it has its answer."""
    loop, numbers, answered = asyncio.get_running_loop(), count(), 0
    over, failed = asyncio.Event(), list[bytes]()

    def done(connection: Connection, head: bytes, body: bytes) -> None:
        nonlocal answered
        if head[9:12] not in (b"200", b"503"):
            failed.append(head + body[:400])
            return over.set()
        answered += len(mine.pop(connection).labels) if head[9:12] == b"200" else 0
        ask(connection)

    def ask(connection: Connection) -> None:
        if loop.time() < until:
            mine[connection] = questions[next(numbers) % len(questions)]
            connection.transport.write(mine[connection].said)
        else:
            over.set()

    mine, until = dict[Connection, Question](), math.inf
    found = [await loop.create_connection(lambda: Connection(done), HOST, port) for _ in range(connections)]
    began = loop.time()
    until = began + seconds
    for _, connection in found:
        ask(connection)
    await over.wait()
    took = loop.time() - began
    for _, connection in found:
        connection.done = lambda *_: None
        connection.transport.abort()
    if failed:
        raise RuntimeError(f"the server did not answer: {failed[0].decode(errors='replace')}")
    return answered / took


def summed(replies: Sequence[Reply], deadline: float, widest: int) -> dict[str, float]:
    """The figures of a load. Requests that were refused, late or unanswered count as wrong. widest: MAdds."""
    good = [reply for reply in replies if reply.status == 200]
    in_time = [reply for reply in good if reply.seconds <= deadline]
    p50, p99 = np.quantile([reply.seconds for reply in good], (0.5, 0.99)) if good else (math.nan, math.nan)
    images = sum(len(reply.question.labels) for reply in replies)
    return {
        "requests": len(replies),
        "in time": len(in_time) / len(replies),
        "accuracy": sum(reply.right for reply in in_time) / images,
        "p50 ms": 1e3 * float(p50),
        "p99 ms": 1e3 * float(p99),
        "refused": sum(reply.status == 503 for reply in replies) / len(replies),
        "late": (len(good) - len(in_time)) / len(replies),
        "failed": sum(reply.status not in (200, 503) for reply in replies) / len(replies),
        "mean width": mean(one for reply in good for one in reply.madds) / widest if good else math.nan,
    }


def recoveries(replies: Sequence[Reply], spans: Sequence[Span], full: float, window: float = 0.25) -> list[float]:
    """Seconds after the end of each burst until the answers of a whole window have the full budget."""
    starts = [sum(seconds for seconds, _ in spans[:number]) for number in range(len(spans) + 1)]
    base, found = min(rate for _, rate in spans), list[float]()
    for number, (_, rate) in enumerate(spans[1:], start=1):
        if rate > base or spans[number - 1][1] <= base:
            continue
        begin, end = starts[number], starts[number + 1]
        less = [reply for reply in replies if reply.status != 200 or reply.budget < full * (1 - 1e-6)]
        low = sorted(reply.done - begin for reply in less if begin <= reply.done < end)
        edges = [0.0, *low, end - begin]
        found.append(next((a for a, b in pairwise(edges) if b - a >= window), math.inf))
    return found


def over_time(
    replies: Sequence[Reply], value: Callable[[Sequence[Reply]], float], step: float
) -> list[tuple[float, float]]:
    """A figure of the requests that came in each step of time; steps without requests are left out."""
    bins: dict[int, list[Reply]] = {}
    for reply in replies:
        bins.setdefault(int(reply.at / step), []).append(reply)
    return [((number + 0.5) * step, value(bins[number])) for number in sorted(bins)]
