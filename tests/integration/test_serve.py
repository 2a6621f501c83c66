"""The server over HTTP: its protocols give the runner's answers, and no request harms it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dsnet
from dsnet.opening import Runtime
from dsnet.routers import RouterSpec
from dsnet.runtime.bundle import BundleRunner
from dsnet.runtime.runner import Runner
from dsnet.serve import engine, ladder
from dsnet.serve import model as model_room
from support.detectors import random_detector
from support.networks import calibrated
from support.sizes import SIZES, sized

pytest.importorskip("starlette", reason="the extra dsnet[serve] is not installed")
pytest.importorskip("uvicorn", reason="the extra dsnet[serve] is not installed")

from dsnet.serve.limits import Limits, decompressed
from support.server import Running, running

LIMITS = Limits(body=2_000_000, pixels=100_000, images=20, json=500_000, deadline_ms=20_000)
SIDE = 16
VALUES = 3 * SIDE * SIDE


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Milliseconds of noise do for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "SECONDS", 0.02)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    net.card = replace(net.card, classes=tuple("abcdefg"))
    dsnet.export_onnx(net, folder / "net.onnx", image_size=SIDE)
    dsnet.export_bundle(net, folder / "bundle", image_size=SIDE)
    dsnet.export_onnx(net, folder / "raw.onnx", image_size=SIDE, raw=True)
    x = torch.from_numpy(images(8))
    dsnet.export_onnx(net, folder / "int8.onnx", image_size=SIDE, int8=dsnet.quantisation(net, x))
    dsnet.export_onnx(random_detector().float(), folder / "boxes.onnx")
    return folder


@pytest.fixture(scope="module")
def served(files: Path) -> Iterator[Running]:
    places = {"net": files / "net.onnx", "bundle": files / "bundle", "raw": files / "raw.onnx"}
    places["int8"] = files / "int8.onnx"
    with running({**places, "boxes": files / "boxes.onnx"}, limits=LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def runner(files: Path) -> Runner:
    return dsnet.open_runner(files / "net.onnx", threads=1)


def images(count: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE))
    return (noise * np.linspace(0.2, 3, count)[:, None, None, None]).astype(np.float32)


def png(seed: int = 0, size: tuple[int, int] = (50, 40), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(out := io.BytesIO(), kind)
    return out.getvalue()


def question(x: np.ndarray, *, binary: bool = True, **parameters: object) -> tuple[bytes, dict[str, str]]:
    """An inference request: body and headers."""
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": list(x.shape)}
    tensor |= {"parameters": {"binary_data_size": x.nbytes}} if binary else {"data": x.ravel().tolist()}
    head = json.dumps({"id": "7", "inputs": [tensor], "parameters": parameters}).encode()
    if not binary:
        return head, {}
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def infer(served: Running, x: np.ndarray, model: str = "net", **parameters: object) -> dict[str, Any]:
    status, said, _ = served.ask("POST", f"/v2/models/{model}/infer", *question(x, **parameters))
    assert status == 200, said
    outputs = {row["name"]: np.array(row["data"]).reshape(row["shape"]) for row in said["outputs"]}
    return {**outputs, "parameters": said["parameters"], "id": said["id"]}


# Answers


ASKS: list[dict[str, Any]] = [{"budget": 0.5}, {"budget": "70%", "max_width": 2}, {"path": "3"}, {"max_width": 1}]


@pytest.mark.parametrize("model", ["net", "bundle", "int8"])
@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_answers_are_those_of_the_runner(
    served: Running, files: Path, runner: Runner, model: str, ask: dict[str, Any]
) -> None:
    x = images(20)
    found = infer(served, x, model, **ask)
    if model == "int8":
        runner = dsnet.open_runner(files / "int8.onnx", threads=1)
        assert "int8" in served.state.engine.models["int8"].runner.runtime
    if ask == {"max_width": 1}:  # the best within the cap, which is the cap itself
        ask = {"path": "1"}
    expected = runner(x, **{**ask, "path": (3 if ask["path"] == "3" else 1,)} if "path" in ask else ask)
    np.testing.assert_array_equal(found["path"], expected.paths)
    np.testing.assert_array_equal(found["madds"], expected.madds)
    np.testing.assert_allclose(found["logits"], expected.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-5)
    assert found["id"] == "7"
    share = found["parameters"]["budget"]
    assert 0 < share <= 1.2
    if "path" in ask:
        assert share == pytest.approx(found["madds"][0] / runner.manifest.table.widest, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net", "int8"])
@pytest.mark.parametrize("runtime", ["openvino", "openvino-bf16"])
def test_openvino_serves_its_own_answers(files: Path, name: str, runtime: Runtime) -> None:
    pytest.importorskip("openvino", reason="openvino is optional and not installed")
    try:
        expected = dsnet.open_runner(files / f"{name}.onnx", threads=1, runtime=runtime)
    except ValueError as error:  # of processors without bfloat16
        pytest.skip(str(error))
    with running({name: files / f"{name}.onnx"}, limits=LIMITS, runtime=runtime) as served:
        for ask in ({"budget": 0.5}, {"path": "3"}):
            found = infer(served, images(8), name, **ask)
            wanted = expected(images(8), path=(3,)) if "path" in ask else expected(images(8), **ask)
            np.testing.assert_array_equal(found["path"], wanted.paths)
            np.testing.assert_allclose(found["logits"], wanted.logits, rtol=1e-4, atol=1e-4)
        assert served.state.engine.models[name].runner.runtime == expected.runtime


def test_without_a_wish_the_best_runs_and_a_least_budget_is_kept(served: Running, runner: Runner) -> None:
    levels = served.state.engine.models["net"].levels
    assert infer(served, images(1))["parameters"]["level"] == levels[-1].name == "width 5"
    found = infer(served, images(1), budget=0.9, min_budget=0.9)
    np.testing.assert_array_equal(found["path"], runner(images(1), budget=0.9).paths)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_the_client_of_triton_works_unchanged(
    served: Running, runner: Runner, binary: bool, coding: str | None
) -> None:
    client = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    x = images(5)
    with client.InferenceServerClient(f"127.0.0.1:{served.port}") as triton:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("net")
        assert not triton.is_model_ready("other")
        assert triton.get_server_metadata()["name"] == "dsnet"
        about = triton.get_model_metadata("net")
        assert about["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, SIDE, SIDE]}]
        names = [one["name"] for one in about["outputs"]]
        assert names == ["logits", "probabilities", "path", "madds"]
        given = client.InferInput("image", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        wanted = [client.InferRequestedOutput(name, binary_data=binary) for name in names]
        codings = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        found = triton.infer("net", [given], outputs=wanted, parameters={"budget": "0.5"}, **codings)
        expected = runner(x, budget=0.5)
        np.testing.assert_array_equal(found.as_numpy("path"), expected.paths)
        np.testing.assert_array_equal(found.as_numpy("madds"), expected.madds)
        np.testing.assert_allclose(found.as_numpy("logits"), expected.logits, rtol=1e-4, atol=1e-4)
        assert found.as_numpy("probabilities").dtype == np.float32
        with pytest.raises(client.InferenceServerException, match="this model takes FP32"):
            triton.infer("net", [client.InferInput("image", [1], "INT64").set_data_from_numpy(np.zeros(1, np.int64))])


@pytest.mark.parametrize("model", ["net", "raw"])
def test_pictures_are_predicted_as_by_dsnet(served: Running, files: Path, model: str) -> None:
    pictures = [png(0), png(1, kind="JPEG"), png(2, (70, 30))]
    expected = [
        dsnet.predict(Image.open(io.BytesIO(one)), files / f"{model}.onnx", budget=0.5, top=3) for one in pictures
    ]
    status, said, _ = served.ask("POST", f"/predict?model={model}&budget=0.5&top=3", pictures[0])
    assert status == 200
    assert said["predictions"][0]["name"] == expected[0].name
    form, headers = multipart(pictures, budget="0.5", top="3")
    status, said, _ = served.ask("POST", f"/predict?model={model}", form, headers)
    assert status == 200, said
    for found, answer in zip(said["predictions"], expected, strict=True):
        assert (found["label"], found["name"], tuple(found["path"])) == (answer.label, answer.name, answer.path)
        assert found["madds"] == answer.madds
        assert [one["label"] for one in found["top"]] == [one.label for one in answer.top]
        assert found["confidence"] == pytest.approx(answer.confidence, rel=1e-3)
    assert [one["file"] for one in said["predictions"]] == ["0.png", "1.png", "2.png"]
    assert said["ms"] >= said["network_ms"] > 0


def multipart(pictures: list[bytes], **fields: str) -> tuple[bytes, dict[str, str]]:
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts += [(f'name="images"; filename="../../{number}.png"', one) for number, one in enumerate(pictures)]
    body = b"".join(
        b"--cut\r\nContent-Disposition: form-data; " + about.encode() + b"\r\n\r\n" + value + b"\r\n"
        for about, value in parts
    )
    return body + b"--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


def test_detectors_answer_with_boxes(served: Running, files: Path) -> None:
    picture = png(3, (90, 60))
    expected = dsnet.predict(Image.open(io.BytesIO(picture)), files / "boxes.onnx", path=(5,), confidence=0.05)
    status, said, _ = served.ask("POST", "/predict?model=boxes&confidence=0.05&path=5", picture)
    assert status == 200
    found = said["predictions"][0]["objects"]
    assert [one["label"] for one in found] == [one.label for one in expected.objects]
    np.testing.assert_allclose([one["box"] for one in found], [one.box for one in expected.objects], atol=0.02)
    x = np.random.default_rng(0).normal(size=(1, 3, 64, 64)).astype(np.float32)
    tensors, routed = infer(served, x, "boxes", path=5), dsnet.open_runner(files / "boxes.onnx").run_path(x, (5,))
    for name in ("boxes", "scores"):
        np.testing.assert_allclose(tensors[name], routed.outputs[name], rtol=1e-3, atol=1e-4)


def test_figures_name_paths_as_requests_do(tmp_path: Path) -> None:
    net = sized("ds_mobilenet_v1_tiny").float()
    dsnet.export_onnx(net, tmp_path / "sizes.onnx")
    x = np.zeros((1, 3, SIZES[-1], SIZES[-1]), np.float32)
    with running({"sizes": tmp_path / "sizes.onnx"}) as found:
        infer(found, x, "sizes", path="16px:2")
        infer(found, x, "sizes", path="2,5")
        text = found.ask("GET", "/metrics")[1]
        assert b'dsnet_paths_total{model="sizes",path="16px:2"} 1.0' in text
        assert found.ask("GET", "/live")[1]["mix"] == {"sizes": {"16px:2": 1, "32px:5": 1}}


def test_figures_and_page(served: Running) -> None:
    infer(served, images(3))
    status, text, _ = served.ask("GET", "/metrics")
    assert status == 200
    assert b'dsnet_requests_total{model="net",status="200"}' in text
    assert b'dsnet_paths_total{model="net",path="5"}' in text
    status, live, _ = served.ask("GET", "/live")
    assert status == 200
    assert live["mix"]["net"]["5"] >= 3
    assert live["generosity"] == 1.0
    status, page, headers = served.ask("GET", "/")
    assert status == 200
    assert b"<!doctype html>" in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not [word for word in (b"http://", b"https://", b"//cdn") if word in page]  # no outside requests
    assert [one["name"] for one in served.ask("GET", "/models")[1]] == ["net", "bundle", "raw", "int8", "boxes"]


# Wrong requests


def tensor(**changes: Any) -> bytes:
    about = {"name": "image", "datatype": "FP32", "shape": [1, 3, SIDE, SIDE], "data": [0.0] * VALUES}
    return json.dumps({"inputs": [{**about, **changes}]}).encode()


def asking(**parameters: Any) -> bytes:
    return json.dumps({**json.loads(tensor()), "parameters": parameters}).encode()


INFER = "/v2/models/net/infer"
WRONG: list[tuple[str, bytes, dict[str, str], int, str]] = [
    (INFER, b"", {}, 400, "not JSON"),
    (INFER, b"[1]", {}, 400, "JSON list"),
    (INFER, b'{"a":' * 5000, {}, 400, "not JSON"),
    (INFER, b"{}", {}, 400, "the inputs are none; this model takes one input, image"),
    (INFER, tensor(name="x"), {}, 400, "the inputs are x"),
    (INFER, tensor(datatype="FP64"), {}, 400, "image is FP64; this model takes FP32"),
    (INFER, tensor(shape=[1, 3, 9, 9]), {}, 400, "shape [1, 3, 9, 9]; this model takes [-1, 3, 16, 16]"),
    (INFER, tensor(shape=[-1, 3, SIDE, SIDE]), {}, 400, "shape [-1, 3, 16, 16]"),
    (INFER, tensor(shape=[True, 3, SIDE, SIDE]), {}, 400, "shape [True"),
    (INFER, tensor(shape=[21, 3, SIDE, SIDE]), {}, 400, "21 images; it must have 1 to 20"),
    (INFER, tensor(shape=[0, 3, SIDE, SIDE]), {}, 400, "0 images"),
    (INFER, tensor(data=[1, 2]), {}, 400, f"must be {VALUES} numbers"),
    (INFER, tensor(data=["a"] * VALUES), {}, 400, f"must be {VALUES} numbers"),
    (INFER, tensor(data=None), {}, 400, f"must be {VALUES} numbers"),
    (INFER, tensor(data=[1e39] * VALUES), {}, 400, "not finite or extreme"),
    (INFER, tensor(data=[float("nan")] * VALUES), {}, 400, "not finite or extreme"),
    (INFER, tensor(data=[3e38] * VALUES), {}, 400, "finite"),
    (INFER, tensor(), {"Inference-Header-Content-Length": "9"}, 400, "not JSON"),
    (INFER, tensor(), {"Inference-Header-Content-Length": "-1"}, 400, "'-1'; it must be a whole number from 0"),
    (INFER, tensor() + b"x", {"Inference-Header-Content-Length": str(len(tensor()))}, 400, "1 bytes follow"),
    (INFER, tensor(parameters={"binary_data_size": 8}), {}, 400, "binary_data_size 8 and 0 bytes"),
    (INFER, asking(budget=0), {}, 400, "budget 0 is not understood"),
    (INFER, asking(budget=[1]), {}, 400, "budget is [1]"),
    (INFER, asking(budget=0.5, min_budget=0.9), {}, 400, "min_budget 0.9 is more than budget 0.5"),
    (INFER, asking(path="9"), {}, 400, "allowed are 0, 1, 2, 3, 4, 5"),
    (INFER, asking(path={}), {}, 400, "not a tuple of width indices"),
    (INFER, asking(path="3", budget=1), {}, 400, "a path pins the widths"),
    (INFER, asking(max_width=6), {}, 400, "from 0 (slimmest) to 5 (widest)"),
    (INFER, asking(max_width="x"), {}, 400, "max_width is 'x'"),
    (INFER, asking(deadline_ms=1e9), {}, 400, "at most 60000"),
    (INFER, asking(deadline_ms=0), {}, 400, "deadline_ms is '0'"),
    (INFER, asking(latency_ms="fast"), {}, 400, "latency_ms is 'fast'"),
    (INFER, asking(colour=1), {}, 400, "'colour' is unknown; known are budget"),
    (INFER, b'{"inputs": 3}', {}, 400, "inputs must be a list of objects"),
    (INFER, tensor()[:-1] + b', "outputs": [{"name": "odds"}]}', {}, 400, "'odds' is unknown; this model gives logits"),
    (INFER, b" " * 600_000, {}, 413, "600000 bytes of JSON, the limit is 500000"),
    (INFER, b" " * 2_000_001, {}, 413, "2000001 bytes, the limit is 2000000"),
    (INFER, b"x", {"Content-Encoding": "br"}, 415, "'br' is unknown"),
    (INFER, b"xxxxxxxx", {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
    (INFER, gzip.compress(tensor())[:-9], {"Content-Encoding": "gzip"}, 400, "ends in the middle"),
    (INFER, gzip.compress(b" " * 9_000_000), {"Content-Encoding": "gzip"}, 413, "more than 2000000 bytes"),
    (INFER, zlib.compress(b" " * 9_000_000), {"Content-Encoding": "deflate"}, 413, "more than 2000000 bytes"),
    (INFER, tensor(), {f"X-{number}": "1" for number in range(70)}, 431, "headers, the limit is 64"),
    ("/v2/models/net/versions/2/infer", tensor(), {}, 404, "no version '2'"),
    ("/v2/models/..%2f..%2fetc%2fpasswd/infer", tensor(), {}, 404, "there is no"),
    ("/v2/models/nobody/infer", tensor(), {}, 404, "there is no model 'nobody'; this server has net"),
    ("/v2/health/live", b"", {}, 405, "not allowed"),
    ("/predict", b"", {}, 400, "cannot be read as an image"),
    ("/predict", b"no image", {}, 400, "cannot be read as an image"),
    ("/predict", png()[:200], {}, 400, "cannot be read as an image"),
    ("/predict", png(size=(400, 300)), {}, 400, "400 x 300 pixels, more than the limit of 100,000"),
    ("/predict?top=8", png(), {}, 400, "top is '8'; it must be a whole number from 1 to 7"),
    ("/predict?budget=2", png(), {}, 400, "budget '2' has no unit"),
    ("/predict?model=x", png(), {}, 404, "there is no model 'x'"),
    ("/predict?file=/etc/passwd", png(), {}, 400, "'file' is unknown"),
    ("/predict?model=boxes&confidence=7", png(), {}, 400, "confidence is '7'"),
    ("/predict", *multipart([]), 400, "0 images; it must have 1 to 20"),
    ("/predict", *multipart([png()] * 21), 400, "21 images"),
    ("/predict", multipart([png()])[0][:90], multipart([])[1], 400, "the form ends before its last boundary"),
    ("/predict", multipart([png(), png()])[0][:-8], multipart([])[1], 400, "the form ends before its last boundary"),
    ("/v2/models/boxes/infer", *question(np.zeros((20, 3, 64, 64), np.float32)), 400, "bytes of JSON, the limit is"),
    ("/predict", png(), {"Content-Type": "multipart/form-data"}, 415, "is not understood"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_request_is_told_what_is_wrong(served: Running, number: int) -> None:
    path, body, headers, status, words = WRONG[number]
    found, said, sent = served.ask("POST", path, body, headers)
    assert (found, list(said)) == (status, ["error"])
    assert words in said["error"]
    assert len(said["error"]) < 700
    assert sent["content-type"] == "application/json"


def test_mutated_requests_are_never_a_failure_of_the_server(served: Running) -> None:
    """Bytes of good requests are changed, left out and doubled."""
    rng = np.random.default_rng(0)
    good = [
        (INFER, *question(images(1))),
        (INFER, *question(images(1), binary=False, budget=0.5)),
        ("/predict?top=1", png(), {}),
        ("/predict", *multipart([png(), png(1)], budget="0.5")),
    ]
    counts: dict[int, int] = {}
    for _ in range(120):
        path, body, headers = good[rng.integers(len(good))]
        damaged = bytearray(body)
        for _ in range(rng.integers(1, 4)):
            at, length = int(rng.integers(len(damaged))), int(rng.integers(1, 9))
            changes = [bytes(rng.integers(0, 256, length, np.uint8)), b"", bytes(damaged[at : at + length]) * 2]
            damaged[at : at + length] = changes[rng.integers(3)]
        status, _, _ = served.ask("POST", path, bytes(damaged), headers)
        counts[status] = counts.get(status, 0) + 1
    assert set(counts) <= {200, 400, 413, 415}
    assert counts[400] > 15
    infer(served, images(1))


def test_damaged_pictures_say_nothing_about_the_time_of_networks(served: Running) -> None:
    infer(served, images(1))
    before = served.state.engine.scheduler.learned
    for _ in range(30):
        assert served.ask("POST", "/predict", b"no image")[0] == 400
    assert served.state.engine.scheduler.learned == before


LONG = b"y" * 20_000
CHUNKED = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n".encode()
NOT_HTTP = {
    "nonsense": [b"\x16\x03\x01 nonsense\r\n\r\n"],
    "a long header": [b"GET / HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n"],
    "a long address": [b"GET /" + LONG + b" HTTP/1.1\r\n\r\n"],
    "many headers": [b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 8_000 + b"\r\n"],
    "a header without an end": [b"GET / HTTP/1.1\r\nX: ", *[LONG] * 20],
    "an address without an end": [b"GET /", *[LONG] * 20],
    "a trailer without an end": [CHUNKED + b"0\r\nX: ", *[LONG] * 20],
    "an extension without an end": [CHUNKED + b"2;x=", *[LONG] * 20],
    "two lengths": [b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"],
}


@pytest.mark.parametrize("kind", NOT_HTTP)
def test_what_is_not_http_is_refused(served: Running, kind: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        found = b""
        with contextlib.suppress(ConnectionError):
            for piece in NOT_HTTP[kind]:
                connection.sendall(piece)
                time.sleep(0.001)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                found += chunk
    if found or "without an end" not in kind:  # a client that goes on sending may lose the response to a reset
        assert found.startswith(b"HTTP/1.1 400 ")
        assert b'{"error": ' in found
    assert served.ask("GET", "/v2/health/live")[0] == 200


def test_trailers_are_no_headers(served: Running) -> None:
    found = served.raw(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") + b"0\r\nContent-Encoding: gzip\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"the inputs are none" in found


# Deadlines, slow and dead clients


def test_a_deadline_that_cannot_be_met_is_refused_at_once(served: Running) -> None:
    status, said, headers = served.ask("POST", INFER, *question(images(1), deadline_ms=0.001))
    assert status == 503
    assert "deadline of 0.001 ms cannot be met, even at the lowest budget" in said["error"]
    assert int(headers["retry-after"]) >= 1


def test_an_event_loop_that_is_busy_refuses_before_it_reads(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that is late because the machine is slow answers. If its own work makes it late, a request is
    refused before its body has come, and probes are answered. Afterwards the server answers again."""
    with running({"net": files / "net.onnx"}, limits=Limits(deadline_ms=200), workers=1) as served:
        late, served_engine, until = [True], served.state.engine, time.monotonic() + 30

        def block() -> None:
            time.sleep(0.05)
            if late:
                served.loop.call_soon(block)

        served.loop.call_soon_threadsafe(block)
        while served_engine.lag < 0.04 and time.monotonic() < until:
            time.sleep(0.01)
        assert infer(served, images(1), deadline_ms=20_000)["path"].shape == (1, 1)
        monkeypatch.setattr(engine, "BUSY", -1.0)
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n"
        said = served.raw(head.encode())
        assert b" 503 " in said
        assert b"late with reading requests; try again" in said
        assert served.ask("GET", "/v2/health/live")[0] == 200
        late.clear()
        while served_engine.lag > 0.02 and time.monotonic() < until:
            time.sleep(0.01)
        assert infer(served, images(1), deadline_ms=20_000)["path"].shape == (1, 1)


def test_under_load_budgets_fall_and_nobody_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come at once, and would take 1.6 s at the best. Networks that sleep take the same time anywhere."""
    for room in (ladder, model_room):
        monkeypatch.setattr(room, "time_of", lambda level, *_: 4 + 36 * level.share)
    run = ladder.Level.run

    def sleepy(self: ladder.Level, runner: Runner, x: np.ndarray) -> Any:
        time.sleep(len(x) * self.ms / 1e3)
        return run(self, runner, x)

    with running({"net": files / "net.onnx"}, workers=1, limits=LIMITS) as served:
        monkeypatch.setattr(ladder.Level, "run", sleepy)
        asks: list[dict[str, object]] = [{"path": "5"} if number % 8 == 0 else {} for number in range(40)]
        with ThreadPoolExecutor(len(asks)) as pool:
            found = list(pool.map(lambda ask: infer(served, images(1), deadline_ms=2500, **ask)["parameters"], asks))
        assert all(one["level"] == "width 5" for one, ask in zip(found, asks, strict=True) if ask)
        assert min(one["budget"] for one in found) < 0.8  # the others gave way
        time.sleep(1.1)
        assert infer(served, images(1))["parameters"]["level"] == "width 5"  # as before


@pytest.fixture
def slow(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Running, list[int], threading.Event]]:
    """A server of one worker that waits until it may run: the server, the sizes of what ran, and the permission."""
    ran, may = list[int](), threading.Event()
    run = ladder.Level.run

    def waiting(self: ladder.Level, runner: Runner, x: np.ndarray) -> Any:
        ran.append(len(x))
        assert may.wait(30)
        return run(self, runner, x)

    with running(
        {"net": files / "net.onnx"}, workers=1, limits=replace(LIMITS, idle_seconds=0.5, body_seconds=0.5)
    ) as found:
        monkeypatch.setattr(ladder.Level, "run", waiting)
        yield found, ran, may
        may.set()


def eventually(holds: Any) -> None:
    for _ in range(500):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within five seconds")


def test_work_for_clients_that_are_gone_is_dropped(slow: tuple[Running, list[int], threading.Event]) -> None:
    served, ran, may = slow
    body, headers = question(images(2))
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    said = (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body
    scheduler, connections = served.state.engine.scheduler, []
    for number in range(3):
        connections.append(socket.create_connection(("127.0.0.1", served.port)))
        connections[-1].sendall(said)
        eventually(lambda waiting=number: (len(scheduler.queue), ran) == (waiting, [2]))  # the first one runs
    connections[1].close()
    eventually(lambda: len(scheduler.queue) == 1)
    may.set()
    assert connections[2].recv(100).startswith(b"HTTP/1.1 200")
    assert ran == [2, 2]
    eventually(lambda: served.state.held.bytes == 0)
    for one in connections:
        one.close()


def test_slow_senders_are_sent_away(slow: tuple[Running, list[int], threading.Event]) -> None:
    served, _, may = slow
    may.set()
    begun = time.monotonic()
    assert served.raw() == b""  # it says nothing
    assert served.raw(b"POST /predict HTT") == b""
    assert served.raw(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf").startswith(
        b"HTTP/1.1 408"
    )
    assert time.monotonic() - begun < 10
    assert served.ask("GET", "/v2/health/live")[0] == 200
    assert served.state.held.bytes == 0


def test_too_many_connections_are_refused(files: Path) -> None:
    with running({"net": files / "net.onnx"}, limits=replace(LIMITS, connections=3, idle_seconds=5)) as served:
        idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(3)]
        eventually(lambda: len(served.server.server_state.connections) == 3)
        assert b"503 Service Unavailable" in (found := served.raw())
        assert b"the limit is 3" in found
        for one in idle:
            one.close()
        eventually(lambda: served.ask("GET", "/v2/health/live")[0] == 200)


def test_a_token_is_asked_for(files: Path) -> None:
    with running({"net": files / "net.onnx"}, limits=LIMITS, token=b"a-long-secret-token") as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic a-long-secret-token"}):
            status, _, sent = served.ask("POST", INFER, *(question(images(1))[:1]), headers)
            assert (status, sent["www-authenticate"]) == (401, "Bearer")
        assert served.ask("GET", "/metrics")[0] == 401
        assert served.ask("GET", "/v2/health/ready")[0] == 200  # probes have no token
        body, headers = question(images(1))
        assert served.ask("POST", INFER, body, {**headers, "Authorization": "Bearer a-long-secret-token"})[0] == 200


# The end, and a new beginning


def test_it_drains_before_it_ends(slow: tuple[Running, list[int], threading.Event]) -> None:
    served, ran, may = slow
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(served.ask("POST", INFER, *question(images(1)))[0]))
    asking.start()
    eventually(lambda: ran == [1])
    served.loop.call_soon_threadsafe(served.server.end)
    eventually(lambda: served.ask("GET", "/v2/health/ready")[0] == 503)
    assert served.ask("GET", "/v2/health/live")[0] == 200
    status, said, headers = served.ask("POST", INFER, *question(images(1)))
    assert (status, headers["retry-after"]) == (503, "1")
    assert "about to end" in said["error"]
    assert served.thread.is_alive()
    may.set()
    asking.join(10)
    served.thread.join(10)
    assert answers == [200]
    assert not served.thread.is_alive()


def test_a_model_that_is_replaced_is_taken_over_without_a_failure(files: Path, tmp_path: Path) -> None:
    place = tmp_path / "net.onnx"
    shutil.copy(files / "net.onnx", place)
    other = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    other.card = replace(other.card, classes=tuple("tuvwxyz"))
    dsnet.export_onnx(other, tmp_path / "other.onnx", image_size=SIDE)
    with running({"net": place}, limits=LIMITS) as served:
        stop, found = threading.Event(), list[tuple[int, str]]()

        def ask() -> None:
            while not stop.is_set():
                status, said, _ = served.ask("POST", "/predict", png())
                found.append((status, said["predictions"][0]["name"] if status == 200 else str(said)))

        asking = threading.Thread(target=ask)
        asking.start()
        place.write_bytes(b"damaged")
        served.do(served.state.reload(changed=True))  # the old one stays
        shutil.copy(tmp_path / "other.onnx", place)
        served.do(served.state.reload(changed=True))
        before = len(found)
        eventually(lambda: len(found) > before + 3)
        stop.set()
        asking.join(10)
    assert {status for status, _ in found} == {200}
    assert found[0][1] in "abcdefg"
    assert found[-1][1] in "tuvwxyz"


def test_a_bundle_that_is_removed_is_served_to_the_end(files: Path, tmp_path: Path) -> None:
    place = shutil.copytree(files / "bundle", tmp_path / "bundle")
    opened = dsnet.open_runner(place)
    assert isinstance(opened, BundleRunner)
    opened.open_all()
    assert set(opened.parts.sessions) == {file.stem for file in place.rglob("*.onnx")}
    with running({"net": place}, limits=LIMITS) as served:
        shutil.rmtree(place)
        served.do(served.state.reload())
        for width in range(6):
            assert infer(served, images(3), path=width)["path"].tolist() == [[width]] * 3


def test_a_decompressed_body_is_never_larger_than_its_limit() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    with pytest.raises(Exception, match="more than 1000 bytes"):
        decompressed(bomb, "gzip", 1000)
    for coding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        assert decompressed(pack(b"x" * 1000), coding, 1000) == b"x" * 1000
    assert decompressed(zlib.compress(b"x" * 9)[2:-4], "deflate", 1000) == b"x" * 9  # without its header
