"""Raw files prepare pictures as dsnet does, pixel by pixel, and answer as plain files do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import PIL
import pytest
import torch
from onnx import helper
from PIL import Image

import dsnet
from dsnet import export_onnx, open_runner
from dsnet.card import Preprocessing
from dsnet.errors import DataError
from dsnet.export import raw
from dsnet.export.check import difference
from dsnet.export.whole import finish
from dsnet.export.writer import FLOAT, Graph, Model
from dsnet.manifest import Manifest
from dsnet.pictures import as_batch
from dsnet.routers import RouterSpec
from dsnet.routing.tracking import BudgetTracker
from support.detectors import random_detector
from support.networks import ROUTERS, calibrated, randomised, side
from support.pictures import SHAPES, snapshots

GATE, CHEAP_FIRST = RouterSpec("gate", "correctness"), ROUTERS[1]
EXIT_FIRST = RouterSpec("exit_first", "correctness", early=0)
ROWS_FIRST = int(PIL.__version__.split(".")[0]) >= 13  # older versions resize the columns of every picture first
FITS = [("crop", 0.875), ("crop", 1.0), ("squeeze", 1.0)]


def described(size: int = 32, channels: int = 3, **options: object) -> Manifest:
    """The manifest of a raw file."""
    how = replace(Preprocessing.for_channels(channels), **options)  # type: ignore[arg-type]
    live = randomised("ds_mobilenet_v1_tiny", in_channels=channels).manifest(size)
    return replace(live, preprocessing=how, raw=True)


def preparing(manifest: Manifest) -> onnxruntime.InferenceSession:
    """A file that prepares a picture, and does no more."""
    graph = Graph(Model(shared=False))
    x, image = raw.write_image(graph, manifest, 1)
    graph.nodes.append(helper.make_node("Identity", [x], ["x"]))
    shape = [1, manifest.in_channels, manifest.image_size, manifest.image_size]
    proto = finish(graph, "prepare", [image], [helper.make_tensor_value_info("x", FLOAT, shape)])
    return onnxruntime.InferenceSession(proto.SerializeToString())


def noisy(count: int) -> list[np.ndarray]:
    """Noise, the hardest picture to resize, in given and in random shapes."""
    rng = np.random.default_rng(0)
    shapes = [*SHAPES, *rng.integers(1, 300, (count, 2)).tolist()]
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def is_tall(picture: np.ndarray, size: int) -> bool:
    down, across = (length - size for length in picture.shape[:2])
    return bool(down > max(0, 2 * across))


def largest_difference(manifest: Manifest, pictures: list[np.ndarray]) -> float:
    """In levels of 255, between the pixels of the graph and those of dsnet's reader."""
    session, most = preparing(manifest), 0.0
    for picture in pictures:
        (found,) = session.run(None, {"image": picture})
        off = np.abs(found - as_batch(picture, replace(manifest, raw=False)))
        most = max(most, float(off.max()) * 255 * min(manifest.preprocessing.std))
    return most


@pytest.mark.parametrize("fit", FITS, ids=lambda fit: f"{fit[0]} {fit[1]}")
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (50, 3), (32, 1)])
def test_the_graph_prepares_pictures_as_the_reader_does(
    size: int, channels: int, interpolation: str, fit: tuple[str, float]
) -> None:
    """The largest difference is zero: smaller and larger pictures, single rows and columns, single pixels."""
    manifest = described(size, channels, fit=fit[0], crop=fit[1], interpolation=interpolation)
    pictures = [picture for picture in noisy(8) if ROWS_FIRST or not is_tall(picture, size)]
    assert largest_difference(manifest, pictures) == 0


@pytest.mark.slow
def test_large_pictures_are_prepared_alike() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in ((1500, 2000), (333, 4000), (1999, 1501))]
    for interpolation in ("bilinear", "bicubic"):
        for size in (32, 224):
            assert largest_difference(described(size, interpolation=interpolation), pictures) == 0


def test_a_wrong_order_of_the_axes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding after the first pass makes the difference: this is why tall pictures need a branch of their own."""
    monkeypatch.setattr(raw, "is_tall", lambda graph, size, lengths: graph.constant(1))
    wide = [picture for picture in noisy(8) if not is_tall(picture, 32)]
    assert largest_difference(described(interpolation="bicubic"), wide) >= 1


def test_only_grey_and_colour_can_be_raw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes 5 channels, but pictures have 3, or 1 in grey; leave raw out"):
        export_onnx(randomised("ds_mobilenet_v1_tiny", in_channels=5).float(), tmp_path / "no.onnx", raw=True)


@pytest.mark.parametrize(
    ("name", "router"),
    [
        ("ds_mobilenet_v1_tiny", CHEAP_FIRST),
        ("ds_mobilenet_v1_tiny", EXIT_FIRST),
        pytest.param("ds_resnet_tiny", GATE, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_raw_file_answers_as_the_plain_file(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = calibrated(name, router)
    size, taken = side(net), set()
    pictures = [picture for picture in snapshots(8) if ROWS_FIRST or not is_tall(picture, size)]
    plain = open_runner(export_onnx(net, tmp_path / "plain.onnx", image_size=size), threads=1)
    whole = open_runner(export_onnx(net, tmp_path / "raw.onnx", image_size=size, raw=True), threads=1)
    simple = open_runner(export_onnx(net, tmp_path / "simple.onnx", image_size=size, raw=True, simple=True), threads=1)
    path = net.space.widest
    fixed = open_runner(export_onnx(net, tmp_path / "path.onnx", image_size=size, raw=True, path=path), threads=1)
    assert whole.manifest.raw
    assert all(difference(net, runner) < 1e-3 for runner in (plain, whole, simple, fixed))
    x = as_batch(pictures, plain.manifest)
    for row in (None, *net.card.budgets[::3]):
        madds = None if row is None else row.madds
        expected = plain(x, budget=madds)
        taken |= set(map(tuple, expected.paths.tolist()))
        for runner in (whole, simple):
            found = runner(pictures, budget=madds)
            assert found.paths.tolist() == expected.paths.tolist()
            assert found.madds.tolist() == expected.madds.tolist()
            assert np.allclose(found.logits, expected.logits, atol=1e-4)
    assert len(taken) > 1
    capped = {"budget": 0.9, "max_width": 1}
    assert whole(pictures, **capped).paths.tolist() == plain(x, **capped).paths.tolist()
    for runner in (whole, fixed):
        assert np.allclose(runner(pictures, path=path).logits, plain(x, path=path).logits, atol=1e-4)
    policy = replace(plain.policy(net.card.budgets[2].madds), lam=0.07)  # which the file cannot compute
    assert whole.run(pictures, policy).paths.tolist() == plain.run(x, policy).paths.tolist()


@pytest.mark.slow
def test_a_raw_detector_answers_as_the_plain_one(tmp_path: Path) -> None:
    net = random_detector(router=GATE).float()
    plain, whole = (
        open_runner(export_onnx(net, tmp_path / f"{raw}.onnx", raw=raw), threads=1) for raw in (False, True)
    )
    pictures = snapshots(4)
    expected, found = plain(as_batch(pictures, plain.manifest)), whole(pictures)
    assert found.paths.tolist() == expected.paths.tolist()
    for name in ("boxes", "scores"):
        assert np.allclose(found.outputs[name], expected.outputs[name], atol=1e-4)


def test_predictions_of_a_raw_file_are_those_of_the_plain_file(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", CHEAP_FIRST)
    plain, whole = (
        open_runner(export_onnx(net, tmp_path / f"{raw}.onnx", image_size=side(net), raw=raw), threads=1)
        for raw in (False, True)
    )
    for number, picture in enumerate(snapshots(6)):
        mode = ("RGB", "L", "RGBA")[number % 3]
        Image.fromarray(picture).convert(mode).save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.glob("*.png"))
    for given in (files, tmp_path / "0.png", [Image.open(file) for file in files], [np.zeros((9, 5), np.uint8)]):
        assert rounded(dsnet.predict(given, whole, budget=0.5)) == rounded(dsnet.predict(given, plain, budget=0.5))
    tracked = BudgetTracker(whole, budget=0.5)(files)
    assert tracked.paths.tolist() == BudgetTracker(plain, budget=0.5)(files).paths.tolist()
    assert whole([], budget=0.5).logits.shape == (0, 7)


def rounded(answers: object) -> list[tuple[object, ...]]:
    many = answers if isinstance(answers, list) else [answers]
    return [(one.file, one.label, one.path, one.madds, round(one.confidence, 4)) for one in many]


def test_a_raw_file_refuses_prepared_images_and_milliseconds(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", CHEAP_FIRST)
    runner = open_runner(export_onnx(net, tmp_path / "raw.onnx", image_size=side(net), raw=True))
    x = torch.zeros(2, 3, side(net), side(net))
    with pytest.raises(DataError, match=r"float32 \[3, 16, 16\] is not an image; give uint8 pixels \[H, W, 3\]"):
        runner(x)
    with pytest.raises(ValueError, match=r"input is float32 \[3, 16, 16\] but a raw file takes whole pictures"):
        runner.run(x)
    with pytest.raises(ValueError, match=r"raw\.onnx is raw, so its time depends on the picture's size"):
        runner([np.zeros((4, 4, 3), np.uint8)], latency="5ms")
