"""A cap on the image size: no image takes a larger one, and everything that runs a network obeys alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from dsnet import BudgetTracker, DynamicRunner, export_onnx, open_runner
from dsnet.errors import RoutingError
from dsnet.latency import policy_in, size_for
from dsnet.manifest import Caps, Policy, from_metadata
from dsnet.models import Supernet, eager
from dsnet.results import Latency, Made, PathTime, Setting, Times
from dsnet.routers import Budget, RouterSpec
from dsnet.routing.traces import Traces
from dsnet.runtime.onnx import FileRunner
from dsnet.serve.ladder import Level
from dsnet.serve.model import Ask, Model
from dsnet.space import WidthPath
from dsnet.training import with_fresh_router
from support.networks import assert_close, randomised
from support.sizes import SIZES, everywhere, pictures, routed

CANDIDATES: tuple[WidthPath, ...] = ((0, 1), (0, 4), (1, 3), (2, 5))
ALONE: tuple[WidthPath, ...] = ((0,), (1,), (2,))
LAMBDAS = (-1.0, 0.4, 1.0)


def calibrated(net: Supernet) -> Supernet:
    """The network with budgets, as if they had been calibrated."""
    table = net.manifest().table
    ends = [table.madds(path, dynamic=True) for path in (net.candidates[0], net.candidates[-1])]
    shares = tuple((path, 1 / len(net.candidates)) for path in net.candidates)
    levels = zip(np.linspace(*ends, 11), np.linspace(1, -1, 11), strict=True)
    rows = [Budget(madds, lam, 0.5, SIZES[-1], shares) for madds, lam in levels]
    net.card = replace(net.card, budgets=tuple(rows))
    return net


@pytest.mark.parametrize(("name", "candidates"), [("mobilenet_v1_tiny", ALONE), ("ds_mobilenet_v1_tiny", CANDIDATES)])
def test_every_runner_obeys_the_cap_alike(name: str, candidates: tuple[WidthPath, ...], tmp_path: Path) -> None:
    net, x = calibrated(routed(name, candidates)), pictures(20, torch.float32, seed=2)
    live, taken = eager(net), dict[int, set[WidthPath]]()
    file, bundle = everywhere(net, tmp_path)
    runners = [DynamicRunner(net), file, bundle]
    for cap in (16, 25, 1000):
        for lam in LAMBDAS:
            policy = Policy(lam, max_size=cap)
            expected = live.run(x, policy)
            chosen = {tuple(path) for path in expected.paths.tolist()}
            assert all(net.manifest().size_of(path) <= cap for path in chosen), cap
            taken.setdefault(cap, set()).update(chosen)
            for runner in runners:
                found = runner.run(x, policy)
                assert torch.equal(found.paths, expected.paths), (runner.runtime, cap, lam)
                assert torch.equal(found.madds, expected.madds)
                assert_close(found.logits, expected.logits, 1e-4)
        for runner in runners:  # at a budget, which the file turns into its lambda
            assert torch.equal(runner(x, budget=0.9, max_size=cap).paths, live(x, budget=0.9, max_size=cap).paths)
    assert {len({path[0] for path in paths}) for paths in taken.values()} == {1, 2, 3}  # the cap decides
    assert taken[1000] == set(candidates)
    with pytest.raises(ValueError, match="leave budget, max_width, max_size"):
        file(x, path=candidates[0], max_size=20)


def test_a_plain_onnx_runtime_takes_the_cap_as_an_input(tmp_path: Path) -> None:
    net = calibrated(routed("ds_mobilenet_v1_tiny", CANDIDATES))
    file = export_onnx(net, tmp_path / "model.onnx", max_size=20)
    session, live = onnxruntime.InferenceSession(file), eager(net)
    assert [slot.name for slot in session.get_inputs()] == ["image", "budget", "max_width", "max_size", "pin"]
    assert from_metadata(file, session.get_modelmeta().custom_metadata_map).defaults.max_size == 20

    def paths(max_size: int) -> list[list[int]]:
        feed = {"budget": np.float32([1]), "max_width": np.int64([-1]), "max_size": np.int64([max_size])}
        feed["pin"] = np.int64([-1, -1])
        images = pictures(12, torch.float32, seed=2).numpy()
        return [session.run(["path"], {**feed, "image": image[None]})[0].tolist() for image in images]

    x = pictures(12, torch.float32, seed=2)
    expected = live(x, budget=1.0, max_size=20).paths
    assert paths(-1) == paths(20) == expected.tolist()  # -1 is the file's default
    assert paths(32) == live(x, budget=1.0).paths.tolist() != paths(-1)
    assert torch.equal(open_runner(file, threads=1)(x, budget=1.0).paths, expected)
    one = export_onnx(randomised("ds_mobilenet_v1_tiny", dtype=torch.float32), tmp_path / "one.onnx")
    assert "max_size" not in [slot.name for slot in onnxruntime.InferenceSession(one).get_inputs()]


def test_a_file_without_the_input_decides_outside(tmp_path: Path) -> None:
    """Files of networks with sizes were written without it before there was a cap."""
    net, x = calibrated(routed("ds_mobilenet_v1_tiny", CANDIDATES)), pictures(8, torch.float32, seed=2)
    runner = FileRunner(export_onnx(net, tmp_path / "model.onnx"), threads=1)
    runner._manifest = replace(runner._manifest, inputs=tuple(n for n in runner._manifest.inputs if n != "max_size"))
    session, fed = runner.session, dict[str, int]()

    class Older:
        def run(self, outputs: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            fed.update(dict.fromkeys(feed, 1))
            return session.run(outputs, {**feed, "max_size": np.int64([-1])})

    runner.session = Older()  # type: ignore[assignment]
    policy = runner.policy(1.0, max_size=20)
    assert torch.equal(runner.run(x, policy).paths, eager(net).run(x, policy).paths)
    assert "max_size" not in fed
    simple = FileRunner(export_onnx(net, tmp_path / "simple.onnx", simple=True), threads=1)
    with pytest.raises(RoutingError, match=r"export it again without --simple, or with --max_size 20"):
        simple.run(x, Policy(max_size=20))


def test_traces_and_trackers_obey_the_cap() -> None:
    net, x = calibrated(routed("ds_mobilenet_v1_tiny", CANDIDATES)), pictures(16, torch.float32, seed=2)
    live = eager(net)

    class Nothing:
        def take(self, outputs: object, labels: object) -> None: ...

        def add(self, *given: object) -> None: ...

    class Whole:
        images, labels, ids = x, torch.zeros(16), torch.arange(16)

    traces = Traces(live, [Whole()], Nothing())  # type: ignore[arg-type, list-item]
    for cap in SIZES:
        policy = Policy(-1.0, max_size=cap)
        assert traces.at(policy).paths.tolist() == live.run(x, policy).paths.tolist()
    tracker = BudgetTracker(live, budget=0.9, max_size=20)
    for _ in range(3):
        assert {net.manifest().size_of(tuple(path)) for path in tracker(x).paths.tolist()} <= {16, 20}
        assert tracker.policy().max_size == 20


def test_a_cap_that_fits_nothing_gets_one_clear_error(tmp_path: Path) -> None:
    net, x = calibrated(routed("ds_mobilenet_v1_tiny", ((1, 1), (2, 5)))), pictures(1, torch.float32)
    runner = DynamicRunner(net)
    with pytest.raises(RoutingError, match=r"max_size is 8; the image sizes .* are 16, 20, 32 px, give at least 16"):
        runner(x, max_size=8)
    with pytest.raises(RoutingError, match="the router looks at 20 px first; give at least 20"):
        runner(x, max_size=16)
    with pytest.raises(RoutingError, match="the router looks at 20 px first"):
        export_onnx(net, tmp_path / "model.onnx", max_size=16)
    one = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    one = with_fresh_router(one, replace(one.spec, router=RouterSpec("cheap_first", "correctness"))).eval()
    with pytest.raises(RoutingError, match="runs at one image size, 32 px; leave max_size out"):
        DynamicRunner(one)(x, max_size=16)
    with pytest.raises(RoutingError, match="looks at one image size, 32 px; leave max_size out"):
        DynamicRunner(one).run(x, Policy(max_size=16))


def test_a_width_cap_holds_for_the_first_look_too() -> None:
    runner = DynamicRunner(calibrated(routed("ds_mobilenet_v1_tiny", ((0, 5), (1, 3), (2, 5)))))
    with pytest.raises(RoutingError, match="max_width 3 is below the slimmest width that the router may choose, 5"):
        runner(pictures(1, torch.float32), max_width=3)


def test_a_cap_on_the_latency_becomes_one_on_the_size() -> None:
    net = calibrated(routed("mobilenet_v1_tiny", ALONE))
    manifest = net.manifest()
    times = {path: Times(ms, ms, ms, ms) for path, ms in zip(ALONE, (1.0, 3.0, 5.0), strict=True)}
    rows = tuple(PathTime(path, held, held, (held.mean,) * 4) for path, held in times.items())
    held = Latency(Setting("0" * 64, 32, "onnx", 1, "cpu"), "x", rows, 1, Made())
    assert [size_for(manifest, held, ms) for ms in (1.5, 4.0, 9.0)] == [16, 20, 32]
    assert policy_in(manifest, held, latency_cap="4ms").max_size == 20
    assert policy_in(manifest, held, latency_cap="4ms", max_size=16).max_size == 16
    with pytest.raises(RoutingError, match="cannot be kept"):
        policy_in(manifest, held, latency_cap="0.5ms")


def test_a_server_runs_within_the_cap(tmp_path: Path) -> None:
    net = calibrated(routed("ds_mobilenet_v1_tiny", CANDIDATES))
    model = Model("m", export_onnx(net, tmp_path / "model.onnx"))
    caps: Caps = {"max_size": 20}
    assert all(model.manifest.size_of(level.path) <= 20 for level in model.capped(**caps) if level.path is not None)
    for setting in model.settings(Ask(budget=0.9, max_size=20)):
        assert isinstance(setting.key, Level)
        out = setting.key.run(model.runner, pictures(8, torch.float32, seed=2))
        assert {model.manifest.size_of(tuple(path)) for path in out.paths.tolist()} <= {16, 20}
    wide = model.capped(max_width=4)
    assert {level.path for level in wide} <= {(0, 1), (0, 4), (1, 3)}  # widths, and not the index of the size
    with pytest.raises(RoutingError, match="give at least 16"):
        model.settings(Ask(max_size=8))
