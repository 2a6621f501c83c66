"""One rule for answers that are not finite: every runner raises, and every file answers with NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from dsnet import DynamicRunner, export_bundle, export_onnx, open_runner, quantisation
from dsnet.errors import RoutingError
from dsnet.models import Supernet, eager
from dsnet.routers import RouterSpec
from dsnet.runtime.openvino import openvino
from dsnet.runtime.runner import EXTREME, Runner
from support.counted import Counted
from support.detectors import random_detector
from support.networks import EARLY, ROUTERS, calibrated, randomised, side, varied
from support.pictures import snapshots

GATE, CHEAP_FIRST, EXIT = RouterSpec("gate", "correctness"), ROUTERS[1], EARLY[0]
RUNTIMES = ("onnx", "openvino") if openvino else ("onnx",)
BAD = (np.nan, np.inf, -np.inf, 1e12, -3e38)
ALL = [
    ("ds_mobilenet_v1_tiny", GATE),
    ("ds_mobilenet_v1_tiny", RouterSpec("threshold")),
    ("ds_mobilenet_v1_tiny", EXIT),
    ("ds_resnet_tiny", GATE),
    ("ds_resnet_tiny", CHEAP_FIRST),
    ("ds_efficientnet_tiny", GATE),
]


def exports(net: Supernet, folder: Path, *, quick: bool) -> Iterator[Path]:
    """Every kind of file of a network that takes normalised pixels."""
    size = side(net)
    for name, int8 in (("fp32", None), ("int8", quantisation(net, varied(net, 4).float()))):
        options: dict[str, Any] = {"image_size": size, "int8": int8}
        yield export_onnx(net, folder / f"{name}.onnx", **options)
        if quick:
            continue
        yield export_onnx(net, folder / f"{name}-simple.onnx", simple=True, **options)
        yield export_onnx(net, folder / f"{name}-path.onnx", path=net.space.widest, **options)


def fed(runner: Any, image: np.ndarray, budget: float = -1) -> dict[str, np.ndarray]:
    """What a caller without dsnet gives to a file."""
    points = runner.manifest.points
    knobs = {"budget": np.float32([budget]), "max_width": np.int64([-1]), "pin": np.full(points, -1, np.int64)}
    return {"image": image, **{name: knobs[name] for name in knobs if name in runner.manifest.inputs}}


def wrong(file: Path, images: np.ndarray, runtimes: tuple[str, ...] = RUNTIMES) -> tuple[int, list[object]]:
    """Run a file, without dsnet's checks, on images with one bad pixel. Returns the number of trials, and those whose
    answers are not all NaN, or not all finite for a good image."""
    trials, broken = 0, list[object]()
    for runtime in runtimes:
        runner: Any = open_runner(file, threads=1, runtime=runtime)  # type: ignore[arg-type]
        outputs = list(runner.manifest.outputs)
        for number, image in enumerate(images):
            for bad in (0.0, *BAD):
                pixels = image[None].copy()
                pixels[0].reshape(-1)[7 * number] += bad
                for budget in (-1, np.nan) if bad == 0.0 and "budget" in runner.manifest.inputs else (-1,):
                    answers = runner.session.run(outputs, fed(runner, pixels, budget))
                    good = bad == 0.0 and not np.isnan(budget)
                    trials += 1
                    if not all((np.isfinite if good else np.isnan)(answer).all() for answer in answers):
                        broken.append((file.name, runner.runtime, number, bad, budget))
    return trials, broken


def test_a_file_answers_bad_pixels_with_nan(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", GATE)
    for file in exports(net, tmp_path, quick=True):
        trials, broken = wrong(file, varied(net, 1).float().numpy(), RUNTIMES[:1])
        assert (trials, broken) == (7, [])


@pytest.mark.slow
def test_every_file_answers_bad_pixels_with_nan(tmp_path: Path, counted: Counted) -> None:
    trials, broken = 0, list[object]()
    for name, router in ALL:
        net = calibrated(name, router)
        for file in exports(net, tmp_path, quick=False):
            more, found = wrong(file, varied(net, 4).float().numpy())
            trials, broken = trials + more, broken + found
    detector = random_detector("ds_mobilenet_v1_small", router=GATE).float()
    pictures = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for int8 in (None, quantisation(detector, pictures)):
        for path in (None, (2,)):
            file = export_onnx(detector, tmp_path / "detector.onnx", int8=int8, path=path)
            more, found = wrong(file, pictures.numpy())
            trials, broken = trials + more, broken + found
    law = "A file answers with NaN where pixels or budget are NaN, infinite or extreme, and nowhere else"
    counted(law, trials, broken)


def test_a_batch_of_a_static_file_has_the_sign_for_each_image(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 4).float().numpy()
    x[2, 0, 0, 0] = np.nan
    file = export_onnx(net, tmp_path / "path.onnx", path=(1,), image_size=side(net))
    (logits,) = onnxruntime.InferenceSession(str(file)).run(["logits"], {"image": x})
    assert np.isnan(logits).all(1).tolist() == [False, False, True, False]
    assert np.isfinite(logits[[0, 1, 3]]).all()


def test_a_raw_file_tells_a_bad_budget(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", GATE)
    file = export_onnx(net, tmp_path / "raw.onnx", image_size=side(net), raw=True, simple=True)
    session, (picture, *_) = onnxruntime.InferenceSession(str(file)), snapshots(1)
    for budget, good in ((0.5, True), (-1, True), (np.nan, False), (np.inf, False)):
        (logits,) = session.run(["logits"], {"image": picture, "budget": np.float32([budget])})
        assert np.isfinite(logits).all() if good else np.isnan(logits).all()


def runners(net: Supernet, folder: Path, runtimes: tuple[str, ...]) -> Iterator[Runner]:
    size, int8 = side(net), quantisation(net, varied(net, 4).float())
    yield eager(net)
    yield DynamicRunner(net)
    for number, how in enumerate((None, int8)):
        file = export_onnx(net, folder / f"{number}.onnx", image_size=size, int8=how)
        bundle = export_bundle(net, folder / f"bundle{number}", image_size=size, int8=how)
        for runtime in runtimes:
            for place in (file, bundle):
                yield open_runner(place, threads=1, runtime=runtime)  # type: ignore[arg-type]


@pytest.mark.parametrize("runtimes", [RUNTIMES[:1], pytest.param(RUNTIMES, marks=pytest.mark.slow)])
def test_no_runner_answers_extreme_pixels(runtimes: tuple[str, ...], tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 3).float()
    for runner in runners(net, tmp_path, runtimes):
        for bad in BAD:
            extreme = x.clone()
            extreme[1, 0, 3, 3] = bad
            extreme[1, 1:] = bad
            for asked in ({}, {"path": (1,)}, {"budget": 0.5}):
                with pytest.raises(ValueError, match="1 of 3 inputs are not finite"):
                    runner(extreme, **asked)
        assert torch.isfinite(runner(1e3 * x[:1]).logits).all()  # strange, but not extreme
    assert float((1e3 * x).square().mean()) < EXTREME**2


def test_every_runner_raises_where_the_network_itself_overflows(tmp_path: Path) -> None:
    """Weights that are finite, and answers that are not: the classifier overflows."""
    net = randomised("ds_mobilenet_v1_tiny").float()
    with torch.no_grad():
        net.head.classifier.weight[0] = 3e38
    x, size = varied(net, 2).float(), side(net)
    found = [eager(net), DynamicRunner(net), open_runner(export_onnx(net, tmp_path / "m.onnx", image_size=size))]
    found.append(open_runner(export_bundle(net, tmp_path / "bundle", image_size=size)))
    for runner in found:
        with pytest.raises(RoutingError, match=r"the network's logits of 2 of 2 inputs are not finite"):
            runner(x, path=(3,))
        with pytest.raises(RoutingError, match="not finite"):
            runner.survey(x, [(0,), (3,)])


def test_a_lambda_must_be_a_number() -> None:
    net = calibrated("ds_mobilenet_v1_tiny", GATE)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"lambda is (nan|inf); it must be finite"):
            replace(net.manifest().defaults, lam=bad)
        for changes in ({"lam": bad}, {"madds": bad}):
            with pytest.raises(ValueError, match=r"of a budget is (nan|inf); it must be"):
                replace(net.card.budgets[0], **changes)
        with pytest.raises(ValueError, match=r"budget (nan|inf) is not understood"):
            DynamicRunner(net)(varied(net, 1).float(), budget=bad)
