"""Whatever clients do, the server answers or refuses, and goes on. The long versions count."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnet
from dsnet.routers import RouterSpec
from dsnet.runtime.runner import Runner
from dsnet.serve import ladder
from support.counted import Counted
from support.networks import calibrated

pytest.importorskip("starlette", reason="the extra dsnet[serve] is not installed")
pytest.importorskip("uvicorn", reason="the extra dsnet[serve] is not installed")

from dsnet.serve.limits import Limits
from dsnet.serve.server import allow_files
from support.attacks import (
    HOST,
    OUTCOMES,
    Load,
    Mutator,
    errors_logged,
    form,
    judge,
    judged,
    request,
    resident,
    sent,
    status_of,
)
from support.server import Running, running

SIDE, SOAKED = 16, 96
LIMITS = Limits(body=2_000_000, pixels=100_000, images=20, json=500_000, deadline_ms=20_000)
SHORT = Limits(**{**vars(LIMITS), "idle_seconds": 1.0, "body_seconds": 1.0})
INPUTS = [("net", [1, 3, SIDE, SIDE], "FP32"), ("raw", [9, 7, 3], "UINT8")]
RESET = struct.pack("ii", 1, 0)  # closing sends a reset


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    dsnet.export_onnx(net, folder / "net.onnx", image_size=SIDE)
    dsnet.export_onnx(net, folder / "raw.onnx", image_size=SIDE, raw=True)
    return folder


@pytest.fixture(scope="module")
def served(files: Path) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "SECONDS", 0.02)  # milliseconds of noise do for these tests
        with running({"net": files / "net.onnx", "raw": files / "raw.onnx"}, limits=SHORT, workers=2) as found:
            yield found


def question(value: float = 0.0) -> bytes:
    x = np.full((1, 3, SIDE, SIDE), value, np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return request("/v2/models/net/infer", json.dumps({"inputs": [tensor]}).encode())


def is_well(served: Running) -> None:
    """The server answers, and holds nothing of the requests before."""
    assert status_of(sent(served.port, question())) == 200
    state = served.state
    until = time.monotonic() + 30
    while time.monotonic() < until:
        left = (state.held.bytes, state.engine.answering, len(state.engine.scheduler.queue))
        if left == (0, 0, 0) and not served.server.server_state.connections:
            return
        time.sleep(0.02)
    raise AssertionError(f"bytes, requests, jobs: {left}; {len(served.server.server_state.connections)} connections")


# Mutated requests


def mutated(served: Running, count: int, seed: int, threads: int) -> Any:
    with errors_logged() as errors:
        verdict = judge(served.port, Mutator(INPUTS, seed).cases(count), threads=threads)
    verdict.broken += errors
    return verdict


def test_some_mutated_requests_are_answered_or_refused(served: Running) -> None:
    verdict = mutated(served, 200, 0, 16)
    assert not verdict.broken
    assert verdict.counts["refused"] > 80
    assert verdict.counts["answered"] > 5
    is_well(served)


@pytest.mark.slow
def test_mutated_requests_are_answered_or_refused(served: Running, counted: Counted) -> None:
    before = resident()
    verdict = mutated(served, 10_000, 1, 24)
    if (grown := resident() - before) > 500:
        verdict.broken.append(f"memory grew by {grown:.0f} MB")
    is_well(served)
    law = "A mutated request is answered, or refused with JSON and a status below 500 or 503; the server logs no error"
    kinds = {name: verdict.counts[name] for name in ("answered", "refused", "closed")}
    counted(law, verdict.counts.total(), verdict.broken, **kinds)


# Clients that go away


def cut(port: int, rng: random.Random) -> str:
    """Send some of a request, and leave: with a reset, in good order, or without a word."""
    said = question()
    place = rng.choice((0, rng.randrange(len(said)), len(said)))
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.sendall(said[:place])
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.02)
        match rng.randrange(5):
            case 0 | 1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return "reset"
            case 2 | 3:
                return "left"
            case _:
                return "waited: " + judged(b"".join(iter(lambda: connection.recv(65536), b"")))


def gone(served: Running, count: int) -> tuple[Counter[str], list[str]]:
    with errors_logged() as errors, ThreadPoolExecutor(16) as pool:
        counts = Counter(pool.map(lambda number: cut(served.port, random.Random(number)), range(count)))
    is_well(served)
    allowed = {"reset", "left", "waited: answered", "waited: refused", "waited: closed"}
    return counts, [*errors, *(name for name in counts if name not in allowed)]


def test_some_clients_that_leave_are_forgotten(served: Running) -> None:
    counts, broken = gone(served, 40)
    assert not broken
    assert len(counts) >= 3


@pytest.mark.slow
def test_clients_that_leave_are_forgotten(served: Running, counted: Counted) -> None:
    counts, broken = gone(served, 2000)
    waited = sum(count for name, count in counts.items() if name.startswith("waited"))
    law = "Of a client that resets, leaves or falls silent at any byte of its request, nothing is kept"
    counted(law, counts.total(), broken, reset=counts["reset"], left=counts["left"], silent=waited)


@pytest.mark.parametrize("ahead", [16, 200_000])
def test_clients_that_do_not_read_are_cut_off(served: Running, ahead: int) -> None:
    """They ask for the page again and again; the server writes until their buffers are full. A client that sends too
    many requests at once is cut off earlier."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((HOST, served.port))
        connection.settimeout(20)
        ask = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * ahead
        gave_up, until = False, time.monotonic() + 20
        while not gave_up and time.monotonic() < until:
            try:
                connection.sendall(ask)
                time.sleep(0.01)
            except ConnectionError:
                gave_up = True
        assert gave_up
    is_well(served)


@pytest.mark.slow
def test_idle_connections_harm_nobody(files: Path, counted: Counted) -> None:
    count, limits = 500, Limits(**{**vars(LIMITS), "idle_seconds": 5.0})
    allow_files(2 * count)
    with running({"net": files / "net.onnx"}, limits=limits) as served:
        idle = [socket.create_connection((HOST, served.port), timeout=60) for _ in range(count)]
        for number, one in enumerate(idle):
            one.sendall(question()[: number % 60])  # nothing, or some of its headers
        held = len(served.server.server_state.connections)
        broken = [status for _ in range(100) if (status := status_of(sent(served.port, question()))) != 200]
        closed = sum(one.recv(10) == b"" for one in idle)
        for one in idle:
            one.close()
        is_well(served)
    assert held > count * 0.9
    law = "While 500 connections are idle, others are answered; then the idle ones are closed"
    counted(law, 100 + count, [*broken, *["not closed"] * (count - closed)], answered=100, closed=closed)


# Bombs


def bombs() -> list[tuple[str, bytes]]:
    """Small requests that become large."""
    zeros = zlib.compressobj(9, wbits=31)
    packed = b"".join(zeros.compress(b"\0" * (1 << 20)) for _ in range(64)) + zeros.flush()
    spaces = gzip.compress(b" " * 20_000_000)
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    picture += b"".join(struct.pack(">I", 9) + b"IDAT" + zlib.compress(b"") + b"\0" * 5 for _ in range(2))
    infer, coded = "/v2/models/net/infer", {"Content-Encoding": "gzip"}
    deep = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    long = b'{"inputs": [{"name": "image", "shape": [1, 3, 16, 16], "datatype": "FP32", "data": [' + b"1e999," * 60_000
    return [
        ("gzip", request(infer, packed, coded)),
        ("gzip", request("/predict", packed, coded)),
        ("gzip of gzip", request(infer, gzip.compress(packed), coded)),
        ("gzip of blanks", request(infer, spaces, coded)),
        ("deflate", request("/predict", zlib.compress(b"\0" * 20_000_000), {"Content-Encoding": "deflate"})),
        ("picture", request("/predict", picture)),
        ("pictures", request("/predict", *form([picture] * 20))),
        ("parts", request("/predict", *form([b"x"] * 2000))),
        ("fields", request("/predict", *form([], **{f"f{k}": "x" for k in range(5000)}))),
        ("nested", request(infer, deep)),
        ("numbers", request(infer, long + b"1]}]}")),
        (
            "shape",
            request(infer, b'{"inputs": [{"name": "image", "shape": [1000000000, 3, 16, 16], "datatype": "FP32"}]}'),
        ),
        ("large", request(infer, b"x", size=10**15)),
    ]


def test_bombs_are_refused_in_little_memory(served: Running) -> None:
    is_well(served)
    cases, before = bombs(), resident()
    with errors_logged() as errors:
        verdict = judge(served.port, cases, threads=4)
    assert not verdict.broken + errors
    assert verdict.counts["refused"] == len(cases)
    assert resident() - before < 100
    is_well(served)


# Workers and the end


@pytest.mark.parametrize("failure", [SystemExit, MemoryError, KeyboardInterrupt])
def test_a_worker_that_dies_takes_nobody_with_it(
    served: Running, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    run = ladder.Level.run

    def deadly(self: ladder.Level, runner: Runner, x: np.ndarray) -> Any:
        if x.any():
            raise failure("killed")
        return run(self, runner, x)

    monkeypatch.setattr(ladder.Level, "run", deadly)
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda number: status_of(sent(served.port, question(number % 3 == 1))), range(30)))
    assert statuses == [503 if number % 3 == 1 else 200 for number in range(30)]
    monkeypatch.undo()
    is_well(served)


@pytest.mark.slow
def test_requests_while_it_drains_are_answered_or_refused(
    files: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask all the time, each time on a new connection, until nobody listens any more."""
    monkeypatch.setattr(ladder, "SECONDS", 0.02)
    counts: Counter[str] = Counter()
    broken: list[str] = []

    def client(port: int) -> None:
        while True:
            try:
                found = judged(sent(port, question()))
            except ConnectionRefusedError:
                return
            counts[found if found in OUTCOMES else "broken"] += 1
            if found not in OUTCOMES:
                broken.append(found)

    for number in range(20):
        with running({"net": files / "net.onnx"}, limits=LIMITS, workers=2) as served, errors_logged() as errors:
            clients = [threading.Thread(target=client, args=[served.port]) for _ in range(6)]
            for one in clients:
                one.start()
            time.sleep(0.1 + 0.01 * number)
            served.loop.call_soon_threadsafe(served.server.end)
            served.thread.join(30)
            for one in clients:
                one.join(30)
        broken += errors
        broken += ["it did not end"] * served.thread.is_alive()
    law = "A request before, while or after a server drains is answered whole, refused, or finds nobody"
    counted(law, counts.total(), broken, servers=20, **{name: counts[name] for name in OUTCOMES})


@pytest.mark.slow
def test_under_triple_load_memory_is_stable(tmp_path: Path, counted: Counted) -> None:
    """DSNET_SOAK_SECONDS sets how long it takes. Triple is three times what the widest path could answer at best."""
    seconds = float(os.environ.get("DSNET_SOAK_SECONDS", "60"))
    net = calibrated("ds_mobilenet_v1", RouterSpec("cheap_first", "correctness")).float()
    file = dsnet.export_onnx(net, tmp_path / "net.onnx", image_size=SOAKED)
    command = [sys.executable, "-m", "dsnet", "serve", str(file), "--port", "0", "--workers", "1"]
    samples: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "is ready" in line)
            port = int(said.split(" ")[0].rpartition(":")[2])
            models = json.loads(sent(port, request("/models", method="GET")).partition(b"\r\n\r\n")[2])
            x = np.random.default_rng(0).normal(size=(1, 3, SOAKED, SOAKED)).astype(np.float32)
            about = {"name": "image", "datatype": "FP32", "shape": list(x.shape)}
            head = json.dumps({"inputs": [{**about, "parameters": {"binary_data_size": x.nbytes}}]}).encode()
            headers = {"Inference-Header-Content-Length": str(len(head)), "Connection": "keep-alive"}
            asked = request("/v2/models/net/infer", head + x.tobytes(), headers)
            load = Load(port, asked, 3e3 / models[0]["levels"][-1]["ms"])

            async def soak() -> None:
                running = asyncio.create_task(load.run(seconds))
                while not running.done():
                    samples.append(resident(process.pid))
                    await asyncio.sleep(0.5)
                await running

            asyncio.run(soak())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    fifth = len(samples) // 5
    before, after = (float(np.median(part)) for part in (samples[fifth : 2 * fifth], samples[-fifth:]))
    broken = [f"{count} responses of {status}" for status, count in load.counts.items() if status not in (200, 503)]
    if after > 1.05 * before + 5:
        broken.append(f"memory grew from {before:.0f} to {after:.0f} MB")
    assert load.counts[503] > 0  # it was too much
    assert load.counts[200] > load.counts.total() / 20
    law = "Under three times the load that the widest path can take, requests are answered or refused in stable memory"
    found = {"answered": load.counts[200], "refused": load.counts[503], "seconds": round(seconds)}
    counted(law, load.counts.total(), broken, **found, MB_early=round(before), MB_at_the_end=round(after))
