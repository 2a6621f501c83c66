"""Servers for a load, each on one core, and the bare runner on the same core to compare them with."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from load import HOST, Question, infer_request, saturate

from dsnet import open_runner
from dsnet.manifest import Manifest

PATIENT = 60_000  # milliseconds of deadline where nothing shall be refused
BATCH = 16  # images of a request that measures throughput
TURNS = 8  # of server and bare runner


@dataclass(frozen=True)
class Server:
    """A server that runs, and what every request to it asks for."""

    port: int
    asks: dict[str, Any]

    def questions(self, images: np.ndarray, labels: Sequence[int], size: int, **asks: Any) -> list[Question]:
        """Requests with `size` images each."""
        starts = range(0, len(labels) - size + 1, size)
        return [
            Question(
                infer_request("model", images[low : low + size], {**self.asks, **asks}),
                tuple(labels[low : low + size]),
            )
            for low in starts
        ]


@contextmanager
def served(place: Path, deadline: float, core: int) -> Iterator[int]:
    """`dsnet serve` with one worker on a core; yields its port."""
    words = [sys.executable, "-m", "dsnet", "serve", f"model={place}", "--port", "0", "--workers", "1"]
    with subprocess.Popen(
        [*words, "--deadline", f"{deadline:g}"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    ) as process:
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if "is ready" in line), None)
            if said is None:
                raise RuntimeError(f"dsnet serve {place} did not start")
            yield int(said.split(" ")[0].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait(30)


def levels_of(port: int) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{HOST}:{port}/models", timeout=30) as response:
        found: list[dict[str, Any]] = json.load(response)[0]["levels"]
    return found


def pin(level: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for to be run at a level of the server, whatever the load."""
    name = level["name"]
    if name.startswith("budget"):
        return {"budget": level["budget"], "min_budget": level["budget"]}
    return {"path": name.partition(" ")[2] or name}  # width 3, path 0,1,2,3, or exit


# The bare runner, on the core of the servers


def bare(place: Path, core: int, pipe: Any) -> None:
    """Time calls of a runner, as they are asked for: seconds of each of `count` calls."""
    os.sched_setaffinity(0, [core])
    runner = open_runner(place, threads=1)
    while (asked := pipe.recv()) is not None:
        images, path, count = asked
        runner.run_path(images, path)
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            runner.run_path(images, path)
            times.append(time.perf_counter() - begun)
        pipe.send(times)


@contextmanager
def bare_runner(place: Path, core: int) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=bare, args=(place, core, theirs))
    process.start()

    def timed(images: np.ndarray, path: Sequence[int], count: int) -> list[float]:
        mine.send((images, tuple(path), count))
        times: list[float] = mine.recv()
        return times

    try:
        yield timed
    finally:
        mine.send(None)
        process.join(30)


def asked_alone(port: int, question: Question, count: int) -> list[float]:
    """Seconds of requests one after the other."""
    times = []
    with socket.create_connection((HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            begun = time.perf_counter()
            connection.sendall(question.said)
            held = b""
            while True:
                held += connection.recv(1 << 20)
                head, _, body = held.partition(b"\r\n\r\n")
                size = next((line[15:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"")
                if size and len(body) >= int(size):
                    break
            times.append(time.perf_counter() - begun)
    return times


def beside_the_runner(place: Path, server: Server, manifest: Manifest, images: np.ndarray, core: int) -> dict[str, Any]:
    """Overhead of a request, and throughput as a share of the bare runner's, in turns. All run the widest path."""
    path, patient = manifest.space.widest, {"deadline_ms": PATIENT}
    (alone,) = server.questions(images[:1], [0], 1, **patient)
    together = server.questions(images[: 4 * BATCH], [0] * 4 * BATCH, BATCH, **patient)
    overheads, shares = [], []
    with bare_runner(place, core) as timed:
        for number in range(TURNS + 1):
            over = median(asked_alone(server.port, alone, 25)) - median(timed(images[:1], path, 25))
            rate = asyncio.run(saturate(server.port, together, 1.0))
            share = rate * median(timed(images[:BATCH], path, max(3, round(rate / BATCH / 2)))) / BATCH
            if number:  # the first turn warms up
                overheads.append(1e3 * over)
                shares.append(share)
    return {"overhead ms": median(overheads), "throughput / bare runner": median(shares), "turns": TURNS}
