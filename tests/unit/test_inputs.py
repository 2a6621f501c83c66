"""The inputs of an exported file: all of them are real, and a budget means to the file what it means to dsnet."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from dsnet import DynamicRunner, export_bundle, export_onnx, open_runner, route
from dsnet.errors import RoutingError
from dsnet.export.check import difference
from dsnet.export.dynamic import DynamicWriter
from dsnet.export.onnx import to_export
from dsnet.export.whole import finish
from dsnet.manifest import Policy
from dsnet.nn import RouterSpec
from dsnet.pictures import as_batch
from dsnet.routing.budgets import policy_for
from dsnet.routing.policy import Prices, decide
from dsnet.routing.traces import Traces
from dsnet.runs.dynamic import evaluate_dynamic
from dsnet.tasks.classification.accuracy import AccuracyScorer
from support.detectors import random_detector
from support.networks import ROUTERS, calibrated, load_from, randomised, side, traces_on, varied
from support.pictures import snapshots

GATE, CHEAP_FIRST, THRESHOLD = RouterSpec("gate", "correctness"), ROUTERS[1], RouterSpec("threshold")
WINDOWED = replace(GATE, windows=3)
INPUTS = ["image", "budget", "max_width", "pin"]


def names_of(file: Path) -> list[str]:
    return [slot.name for slot in onnxruntime.InferenceSession(str(file)).get_inputs()]


def written(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Files of networks with one choice point, and the inputs that each must have."""
    found = {}
    for router in (GATE, CHEAP_FIRST, THRESHOLD):
        net = calibrated("ds_mobilenet_v1_tiny", router)
        file = export_onnx(net, folder / f"{router.kind}.onnx", image_size=side(net), simple=router is THRESHOLD)
        found[router.kind] = file, INPUTS[:2] if router is THRESHOLD else INPUTS
    path = export_onnx(net, folder / "path.onnx", image_size=side(net), path=(2,))
    raw = export_onnx(net, folder / "raw.onnx", image_size=side(net), raw=True)
    return {**found, "path": (path, ["image"]), "raw": (raw, INPUTS)}


def written_slowly(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    several, slim = calibrated("ds_resnet_tiny", GATE), calibrated("ds_mobilenet_v1_tiny", CHEAP_FIRST)
    detector = random_detector("ds_mobilenet_v1_small", router=GATE).float()  # without calibrated budgets
    widths = export_onnx(randomised("ds_resnet_tiny").float(), folder / "widths.onnx", image_size=32)
    bundle = export_bundle(slim, folder / "bundle", image_size=side(slim))
    return {
        "gates": (export_onnx(several, folder / "gates.onnx", image_size=side(several)), INPUTS),
        "simple": (export_onnx(slim, folder / "simple.onnx", image_size=side(slim), simple=True), INPUTS[:2]),
        "widths": (widths, ["image", "pin"]),
        "detector": (export_onnx(detector, folder / "detector.onnx"), ["image", "max_width", "pin"]),
        **{file.name: (file, names_of(file)) for file in bundle.glob("*.onnx")},
    }


@pytest.mark.parametrize("write", [written, pytest.param(written_slowly, marks=pytest.mark.slow)])
def test_plain_onnx_runtime_opens_every_file_without_a_warning(
    write: Callable[[Path], dict[str, tuple[Path, list[str]]]], tmp_path: Path
) -> None:
    files = write(tmp_path)
    program = "import sys, onnxruntime\nfor file in sys.argv[1:]: onnxruntime.InferenceSession(file)"
    words = [sys.executable, "-c", program, *(str(file) for file, _ in files.values())]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for file, inputs in files.values():
        assert names_of(file) == inputs


@pytest.mark.parametrize(
    "router", [GATE, WINDOWED, CHEAP_FIRST, THRESHOLD], ids=["gate", "windows", "cheap_first", "threshold"]
)
def test_the_graph_decides_as_dsnet_for_any_scores_and_budget(router: RouterSpec) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", router)
    manifest = to_export(net, side(net), None)
    writer = DynamicWriter(net.parts(), manifest, manifest.defaults)
    knobs = writer.knobs()
    assert writer.prices is not None
    prices: Prices = writer.prices
    position = writer.decision(writer.graph, "scores", writer.graph.constant(prices.at(0, 0), np.float64), 0)
    writer.graph.nodes.append(helper.make_node("Identity", [position], ["position"]))
    scores_in = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, len(net.candidates)])
    answer = helper.make_tensor_value_info("position", TensorProto.INT64, [None])
    given = [knob for knob in knobs if knob.name != "pin"]
    proto = finish(writer.graph, "rule", [scores_in, *given], [answer])
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    rng = np.random.default_rng(1)
    scores = rng.normal(0, 0.5, (100_000, len(net.candidates))).astype(np.float32)
    scores[:50_000] = (8 * scores[:50_000]).round() / 8  # many ties
    shares = [row.madds / manifest.table.widest for row in net.card.budgets]
    asked = [*shares, *rng.uniform(shares[0] / 2, 1.2 * shares[-1], 20), 0.01, 1.0, *np.nextafter(shares, 0)]
    for number, share in enumerate(asked):
        policy = policy_for(manifest, share * manifest.table.widest, max_width=(None, 3, 1, 0)[number % 4])
        expected = decide(scores, prices.at(0, 0), policy, prices.allowed(0, policy))
        cap = -1 if policy.max_width is None else policy.max_width
        for fed in (np.float32(share), np.float32(policy.share)):  # what a caller asks, and what dsnet feeds
            feed = {"scores": scores, "budget": fed[None], "max_width": np.int64([cap])}
            assert np.array_equal(session.run(None, feed)[0], expected), share
    free = {"scores": scores, "budget": np.float32([-1]), "max_width": np.int64([-1])}
    allowed = prices.allowed(0, manifest.defaults)
    assert np.array_equal(session.run(None, free)[0], decide(scores, prices.at(0, 0), manifest.defaults, allowed))


@pytest.mark.parametrize(
    ("name", "router"),
    [("ds_mobilenet_v1_tiny", CHEAP_FIRST), pytest.param("ds_resnet_tiny", GATE, marks=pytest.mark.slow)],
)
def test_a_simple_file_takes_a_budget_only(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = calibrated(name, router)
    x, size = varied(net, 6).float(), side(net)
    file = export_onnx(net, tmp_path / "simple.onnx", image_size=size, simple=True, max_width=2)
    assert names_of(file) == ["image", "budget"]
    runner, whole = open_runner(file), open_runner(export_onnx(net, tmp_path / "whole.onnx", image_size=size))
    assert difference(net, runner) < 1e-4
    for row in (None, *net.card.budgets[::3]):
        madds = None if row is None else row.madds
        assert torch.equal(runner(x, budget=madds).paths, whole(x, budget=madds, max_width=2).paths)
    with pytest.raises(RoutingError, match="its cap cannot be changed; export it again without --simple, or with"):
        runner(x, max_width=1)
    with pytest.raises(RoutingError, match="was exported with --simple and takes no lambda"):
        runner.run(x, Policy(0.123, 2))
    with pytest.raises(ValueError, match=r"simple.onnx was exported with --simple and runs no chosen path"):
        runner(x, path=net.space.slimmest)
    with pytest.raises(ValueError, match="has no calibrated budgets at 96 px, so a simple file would have nothing"):
        export_onnx(net, tmp_path / "no.onnx", image_size=96, simple=True)
    with pytest.raises(ValueError, match="a file of one path has no input but the image"):
        export_onnx(net, tmp_path / "no.onnx", path=net.space.widest, simple=True)


def test_a_file_with_several_gates_is_evaluated_as_the_network(tmp_path: Path) -> None:
    net = calibrated("ds_resnet_tiny", GATE)
    live = traces_on(net, 24)
    x, size = varied(net, 24).float(), side(net)
    load = load_from(x, torch.from_numpy(live.scorer.labels))
    file = open_runner(export_onnx(net, tmp_path / "gates.onnx", image_size=size), threads=1)
    scorer = AccuracyScorer(file.manifest)
    exported = Traces(
        file, [load(torch.arange(24))], scorer, load=lambda parts: map(load, map(torch.from_numpy, parts))
    )
    budgets = [row.madds for row in net.card.budgets[1::2]]
    mine, theirs = evaluate_dynamic(exported, budgets), evaluate_dynamic(live, budgets)
    assert len({row.madds.mean for row in theirs.rows}) > 2
    for row, other in zip((*mine.rows, mine.as_trained), (*theirs.rows, theirs.as_trained), strict=True):
        assert row is not None
        assert other is not None
        assert (row.lam, row.gates, row.madds, row.score) == (other.lam, other.gates, other.madds, other.score)


def test_a_lambda_that_no_budget_gives_is_decided_outside_the_file(tmp_path: Path) -> None:
    for name, router in (("ds_resnet_tiny", WINDOWED), ("ds_mobilenet_v1_tiny", CHEAP_FIRST)):
        net = calibrated(name, router)
        x = varied(net, 12).float()
        file = open_runner(export_onnx(net, tmp_path / "file.onnx", image_size=side(net)), threads=1)
        stale = replace(file.policy(net.card.budgets[2].madds), lam=0.07)  # of another table of budgets
        for policy in (Policy(-1e3), Policy(0.02), Policy(0.11, 2), stale, Policy(0.03, 2, window=(1, 3))):
            expected, actual = route(net, x, policy), file.run(x, policy)
            assert torch.equal(actual.paths, expected.paths)
            assert torch.equal(actual.madds, expected.madds)


JAVASCRIPT = ["onnxruntime-node", "onnxruntime-web"]  # native code, and WebAssembly as in a browser
NODE = """
const ort = require(process.argv[2]);
const {image, shape, budgets, points, raw} = JSON.parse(require('fs').readFileSync(0));
(async () => {
  const net = await ort.InferenceSession.create(require('fs').readFileSync(process.argv[1]));
  const whole = (list) => new ort.Tensor('int64', BigInt64Array.from(list.map(BigInt)), [list.length]);
  for (const budget of budgets) {
    const pixels = raw ? Uint8Array.from(image) : Float32Array.from(image);
    const feed = {image: new ort.Tensor(raw ? 'uint8' : 'float32', pixels, shape)};
    feed.budget = new ort.Tensor('float32', [budget], [1]);
    if (net.inputNames.includes('pin')) {
      feed.max_width = whole([-1]);
      feed.pin = whole(Array(points).fill(-1));
    }
    const {logits, path, madds} = await net.run(feed);
    const numbers = (held) => Array.from(held.data, Number);
    console.log(JSON.stringify({logits: numbers(logits), path: numbers(path), madds: Number(madds.data[0])}));
  }
})();
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node.js finds the runtimes for JavaScript."""
    folder = tmp_path_factory.mktemp("node")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    # Without scripts: one of them fetches libraries for GPUs.
    words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *JAVASCRIPT]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("npm cannot install onnxruntime-node and onnxruntime-web")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("runtime", JAVASCRIPT)
@pytest.mark.parametrize(
    ("name", "router", "options"),
    [
        ("ds_mobilenet_v1_tiny", CHEAP_FIRST, {"simple": True}),
        ("ds_resnet_tiny", GATE, {}),
        ("ds_mobilenet_v1_tiny", CHEAP_FIRST, {"simple": True, "raw": True}),
        ("ds_resnet_tiny", GATE, {"raw": True}),
    ],
)
def test_javascript_gives_the_answers_of_python(
    name: str, router: RouterSpec, options: dict[str, bool], runtime: str, node: Path, tmp_path: Path
) -> None:
    net = calibrated(name, router)
    runner, raw = DynamicRunner(net), options.get("raw", False)
    file = export_onnx(net, tmp_path / "model.onnx", image_size=side(net), **options)
    table, seen = net.manifest(side(net)).table, set()
    shares = [float(np.float32(row.madds / table.widest)) for row in net.card.budgets]
    given = snapshots(4) if raw else list(varied(net, 4).float().split(1))
    for fed in given:
        image = torch.from_numpy(as_batch(fed, net.manifest(side(net)))) if raw else fed
        told = {"image": fed.flatten().tolist(), "shape": list(fed.shape), "budgets": [*shares, -1], "raw": raw}
        words, text = ["node", "-e", NODE, str(file), runtime], json.dumps({**told, "points": len(net.spec.widths)})
        done = subprocess.run(words, cwd=node, input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        budgets = [*(row.madds for row in net.card.budgets), None]
        for line, budget in zip(done.stdout.splitlines(), budgets, strict=True):
            found, expected = json.loads(line), runner(image, budget=budget)
            assert (found["path"], found["madds"]) == (expected.paths[0].tolist(), int(expected.madds[0]))
            assert found["logits"] == pytest.approx(expected.logits[0].tolist(), abs=1e-4)
            seen.add(tuple(found["path"]))
    assert len(seen) > 1
