"""Files that are wrong in any way are refused with one line, in little time and memory."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
import yaml
from PIL import Image

import dsnet
from dsnet import export_bundle, export_onnx, tasks
from dsnet.checkpoint import MODEL, WEIGHTS
from dsnet.cli.info import channels_of
from dsnet.config import packaged, read_yaml
from dsnet.files import with_digest
from dsnet.images import check_image
from dsnet.manifest import KEY, Manifest, from_metadata, to_metadata
from dsnet.models import ModelSpec, StageSpec, Supernet
from dsnet.nn import GateSpec
from dsnet.pictures import as_batch
from dsnet.routers import RouterSpec
from dsnet.routing.budgets import policy_for
from dsnet.routing.policy import Prices, decide
from dsnet.runtime.bundle import BUNDLE
from dsnet.runtime.onnx import open_onnx
from dsnet.runtime.runner import Runner
from dsnet.runtime.seal import sealed
from dsnet.tasks import config_from
from dsnet.weights.files import read_tensors
from support.counted import Counted
from support.mutations import garbled, judge, mangled, written
from support.networks import calibrated, side

Cases = Iterator[Callable[[], object]]
QUICK, SLOW = 60, 10_000


def nano() -> Supernet:
    """As small a network as there can be: building it takes no time."""
    stages = (
        StageSpec("conv", 4, stride=2),
        StageSpec("depthwise", (4, 8), repeats=2, stride=2, choice=0, tap="last"),
    )
    spec = ModelSpec("nano", stages, widths=(2,), gate=GateSpec(), num_classes=3, image_size=16)
    return spec.build().eval()


def pictures(folder: Path, count: int, rng: random.Random) -> Cases:
    """Images of every format, with wrong bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 17, 3), np.uint8)
    whole, file, originals = Image.fromarray(pixels), folder / "image", []
    for kind, mode in (
        *((kind, "RGB") for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")),
        ("PNG", "P"),
        ("PNG", "RGBA"),
        ("PNG", "I;16"),
        ("TIFF", "F"),
        ("JPEG", "CMYK"),
    ):
        stream = io.BytesIO()
        image = whole.convert("L").convert(mode) if mode in ("F", "I;16") else whole.convert(mode)
        image.save(stream, kind)
        originals.append(stream.getvalue())
    manifest = nano().manifest()
    for _ in range(count):
        file.write_bytes(garbled(rng.choice(originals), rng))
        yield lambda: (check_image(file, max_pixels=10_000_000), as_batch(file, manifest))


def models(folder: Path, count: int, rng: random.Random) -> Cases:
    """Model folders with wrong bytes, and with descriptions that are wrong in themselves but have the right digest."""
    net = nano()
    dsnet.save(net, folder)
    originals = {name: (folder / name).read_bytes() for name in (MODEL, WEIGHTS)}
    about = json.loads(originals[MODEL])
    for _ in range(count):
        for name, data in originals.items():
            (folder / name).write_bytes(data)
        if rng.random() < 0.25:
            name = rng.choice((MODEL, WEIGHTS))
            (folder / name).write_bytes(garbled(originals[name], rng))
        else:
            content = {key: value for key, value in about.items() if key != "digest"}
            if (part := rng.choice(("spec", "spec", "card", ""))) != "":
                content[part] = mangled(content[part], rng)
            else:
                content = mangled(content, rng)
            (folder / MODEL).write_text(written(signed(content)))
        yield lambda: (tasks.blank(folder).manifest(), dsnet.load(folder))


def signed(content: Any) -> Any:
    """Wrong content with the right digest."""
    try:
        return with_digest({key: value for key, value in content.items() if key != "digest"})
    except (ValueError, AttributeError):  # a number with thousands of digits, or no content at all
        return content


def weights(folder: Path, count: int, rng: random.Random) -> Cases:
    """Weights of other programs, with wrong bytes."""
    tensors = {f"layer{number}.weight": torch.randn(3, 2) for number in range(6)}
    originals = [safetensors.torch.save(tensors)]
    for zipped in (True, False):
        stream = io.BytesIO()
        torch.save({"state_dict": tensors}, stream, _use_new_zipfile_serialization=zipped)
        originals.append(stream.getvalue())
    file = folder / "weights"
    for _ in range(count):
        file.write_bytes(garbled(rng.choice(originals), rng))
        yield lambda: read_tensors(file)


def manifests(folder: Path, count: int, rng: random.Random) -> Cases:
    """Metadata of exported files: the manifest as text or as a tree, wrong in one way or another."""
    originals = []
    for router in (RouterSpec("gate", "correctness", windows=3), RouterSpec("cheap_first", "correctness")):
        net = calibrated("ds_mobilenet_v1_tiny", router)
        originals.append(to_metadata(net.manifest(side(net))))
    for _ in range(count):
        entries: dict[str, Any] = dict(rng.choice(originals))
        if rng.random() < 0.1:
            entries = mangled(entries, rng)
        elif rng.random() < 0.15:
            entries[KEY] = garbled(entries[KEY].encode(), rng).decode(errors="replace")
        else:
            entries[KEY] = written(mangled(json.loads(entries[KEY]), rng))
        yield lambda entries=entries: used(from_metadata("it", entries if isinstance(entries, dict) else {}))


def used(manifest: Manifest) -> None:
    """Do with a manifest what commands do with it."""
    table, router = manifest.table, manifest.router
    for path in table.space.uniform:
        table.cost(path)
        channels_of(manifest, path)
    assert manifest.pinnable
    manifest.check_input((1, manifest.in_channels, manifest.image_size, manifest.image_size))
    if router is not None:
        prices, policy = Prices(table, router), policy_for(manifest, 0.5 if router.budgets else None)
        prices.check_cap(policy)
        scores = np.zeros((2, len(prices.at(0, 0))))
        decide(scores, prices.at(0, 0), policy, prices.allowed(0, policy))
    if manifest.image_size <= 256:
        as_batch(Image.new("RGB", (9, 7)), manifest)


def configs(folder: Path, count: int, rng: random.Random) -> Cases:
    """Configs that come with dsnet, with wrong bytes or wrong values."""
    originals, file = [each.read_bytes() for each in packaged().values()], folder / "config.yaml"
    for _ in range(count):
        data = rng.choice(originals)
        tree = mangled(yaml.safe_load(data), rng) if rng.random() < 0.7 else None
        file.write_bytes(garbled(data, rng) if tree is None else written(tree).encode())
        yield lambda: config_from(read_yaml(file))


def bundles(folder: Path, count: int, rng: random.Random) -> Cases:
    """Bundles with wrong bytes in one of their files, and with a wrong manifest beside graphs that are right."""
    place = export_bundle(nano(), folder / "bundle")
    originals = {file: file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}
    about = json.loads(originals[place / BUNDLE])
    for _ in range(count):
        file = rng.choice([place / BUNDLE, *originals])
        wrong = garbled(originals[file], rng)
        if rng.random() < 0.7:
            entries = {**about, KEY: written(mangled(json.loads(about[KEY]), rng))} if rng.random() < 0.7 else about
            entries = mangled(entries, rng) if entries is about else entries
            file, wrong = place / BUNDLE, written(signed(entries)).encode()
        file.write_bytes(wrong)
        yield lambda: run(open_onnx(place, threads=1))
        file.write_bytes(originals[file])


def run(runner: Runner) -> None:
    """Do with a file what commands do with it."""
    used(runner.manifest)
    if runner.manifest.image_size <= 64:
        x = np.zeros(
            (1, runner.manifest.in_channels, runner.manifest.image_size, runner.manifest.image_size), np.float32
        )
        runner(x, path=runner.paths[0])


def files(folder: Path, count: int, rng: random.Random) -> Cases:
    """ONNX files with wrong bytes, and with a wrong manifest in a graph that is right."""
    file = export_onnx(nano(), folder / "model.onnx")
    data, proto = file.read_bytes(), onnx.load(file)
    (held,) = (entry for entry in proto.metadata_props if entry.key == KEY)
    about = json.loads(held.value)
    for _ in range(count):
        if rng.random() < 0.5:
            wrong = garbled(data, rng)
        else:
            held.value = written(mangled(about, rng))
            wrong = proto.SerializeToString()
        file.write_bytes(sealed(wrong) if rng.random() < 0.9 else wrong)
        yield lambda: run(open_onnx(file, threads=1))


KINDS = {
    "images": pictures,
    "model folders": models,
    "weights of other programs": weights,
    "manifests": manifests,
    "configs": configs,
    "bundles": bundles,
    "ONNX files": files,
}
COUNTS = {"configs": 1000}


@pytest.mark.parametrize("kind", KINDS)
def test_some_wrong_files_are_refused_with_one_line(kind: str, tmp_path: Path) -> None:
    verdict = judge(KINDS[kind](tmp_path, QUICK, random.Random(0)))
    assert not verdict.broken
    assert verdict.trials == QUICK
    assert verdict.counts["refused"] > QUICK // 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_files_are_refused_with_one_line(kind: str, tmp_path: Path, counted: Counted) -> None:
    verdict = judge(KINDS[kind](tmp_path, COUNTS.get(kind, SLOW), random.Random(1)))
    law = f"Mutated {kind} are accepted or refused with one line, within 5 s each and 1.5 GB together"
    counted(law, verdict.trials, verdict.broken, accepted=verdict.counts["accepted"], refused=verdict.counts["refused"])
