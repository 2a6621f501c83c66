"""The server on a local Ray: two replicas, one of which is killed."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnet
from dsnet.routers import RouterSpec
from support.counted import Counted
from support.networks import calibrated

pytest.importorskip("starlette", reason="the extra dsnet[serve] is not installed")
pytest.importorskip("ray.serve", reason="the extra dsnet[ray] is not installed")

import ray
from ray import serve

from dsnet.serve.limits import Limits
from dsnet.serve.ray import deployment

SIDE = 16
REQUESTS, CLIENTS, IMAGES = 600, 6, 1
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    return dsnet.export_onnx(net, tmp_path_factory.mktemp("ray") / "net.onnx", image_size=SIDE)


@pytest.fixture(scope="module")
def address(file: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(deployment({"net": file}, replicas=(2, 2), limits=Limits(deadline_ms=20_000)))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def question(number: int = 0, images: int = 1) -> tuple[np.ndarray, bytes]:
    x = np.random.default_rng(number).normal(size=(images, 3, SIDE, SIDE)).astype(np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return x, json.dumps({"inputs": [tensor]}).encode()


def ask(url: str, body: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, body, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def replicas() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [row["name"] for row in named if row["namespace"] == "serve" and "#dsnet#" in row["name"]]


def test_replicas_answer_as_the_runner(address: str, file: Path) -> None:
    runner = dsnet.open_runner(file)
    for number in range(8):
        x, body = question(number)
        status, said = ask(f"{address}/v2/models/net/infer", body)
        assert status == 200
        found = {row["name"]: np.array(row["data"]) for row in said["outputs"]}
        widest = runner(x, path=runner.manifest.space.widest)
        np.testing.assert_allclose(found["logits"], widest.logits[0], rtol=1e-4, atol=1e-4)
    assert ask(f"{address}/v2/health/ready")[0] == 200
    status, text = ask(f"{address}/v2/models/none/infer", body)
    assert (status, b"there is no model" in text) == (404, True)


def test_a_killed_replica_is_replaced(address: str, counted: Counted) -> None:
    """Requests come all the time. Those that the killed replica had in its hands fail; nobody else notices."""
    before, found, lock = replicas(), list[tuple[float, int]](), threading.Lock()
    assert len(before) == 2

    def client(number: int) -> None:
        _, body = question(number, IMAGES)
        for _ in range(REQUESTS // CLIENTS):
            try:
                status = ask(f"{address}/v2/models/net/infer", body)[0]
            except OSError:
                status = 0
            with lock:
                found.append((time.monotonic(), status))

    clients = [threading.Thread(target=client, args=[number]) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    while len(found) < REQUESTS // 4:
        time.sleep(0.01)
    ray.kill(ray.get_actor(before[0], namespace="serve"))
    for one in clients:
        one.join()
    counts = Counter(status for _, status in found)
    broken = [status for status in counts.elements() if status not in (200, 503)]
    assert len(broken) <= CLIENTS, counts  # at most what was in flight
    until = time.monotonic() + 60
    while len(now := set(replicas()) - {before[0]}) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(now) == 2
    assert all(ask(f"{address}/v2/models/net/infer", question()[1])[0] == 200 for _ in range(20))
    counted(
        "Requests to two replicas, one of which is killed, are answered or refused, and the replica is replaced",
        len(found),
        broken[CLIENTS:],
        answered=counts[200],
        refused=counts[503],
        lost_in_flight=len(broken),
    )
