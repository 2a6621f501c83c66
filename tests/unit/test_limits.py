"""Small files that would take all memory, or run for ever, are refused before anything is built or unpacked."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import dsnet
from dsnet.checkpoint import MODEL
from dsnet.config import read_yaml
from dsnet.cost import Cost, CostTable
from dsnet.errors import CheckpointError
from dsnet.files import with_digest
from dsnet.limits import LIMITS, PREFIX, allow, limit
from dsnet.models import ModelSpec, StageSpec, create_model
from dsnet.weights.files import read_tensors
from support.mutations import memory


class Asks:
    """Is pickled as a bytearray of some gigabytes."""

    def __reduce__(self) -> Any:
        return bytearray, (3 * 10**9,)


def saved(content: object, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def squeezed() -> bytes:
    """A torch file whose tensor is compressed to a thousandth."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(2_000_000)}))) as plain,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in plain.infolist():
            archive.writestr(entry.filename, plain.read(entry))
    return stream.getvalue()


def many_tensors() -> bytes:
    """A safetensors file with a list of hundreds of thousands of tensors."""
    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(entry % number for number in range(400_000)) + "}").encode()
    return len(header).to_bytes(8, "little") + header


WEIGHTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "expanded": (lambda: saved({"a.weight": torch.zeros(1).expand(40_000, 40_000)}), "DSNET_MAX_GROWTH"),
    "expanded, old format": (
        lambda: saved({"a": torch.zeros(1).expand(40_000, 40_000)}, _use_new_zipfile_serialization=False),
        "DSNET_MAX_GROWTH",
    ),
    "compressed": (squeezed, "DSNET_MAX_GROWTH"),
    "bytearray": (lambda: saved({"a": Asks()}), "holds a bytearray"),
    "bytearray, old format": (lambda: saved({"a": Asks()}, _use_new_zipfile_serialization=False), "holds a bytearray"),
    "too many tensors": (many_tensors, "DSNET_MAX_HEADER"),
}


@pytest.mark.parametrize("bomb", WEIGHTS)
def test_weights_that_unpack_to_far_more_than_their_file(bomb: str, tmp_path: Path) -> None:
    make, message = WEIGHTS[bomb]
    file = tmp_path / "weights.pth"
    file.write_bytes(make())
    before, start = memory(), time.process_time()
    with pytest.raises(CheckpointError, match=message) as refused:
        read_tensors(file)
    assert "\n" not in str(refused.value)
    assert memory() - before < 300
    assert time.process_time() - start < 2


def test_plain_weights_are_read(tmp_path: Path) -> None:
    tied = torch.randn(64, 64)
    for content in ({"a": tied, "b": tied, "c": tied.T}, {"state_dict": {"a": tied[:1]}, "optimizer": tied}):
        (tmp_path / "weights").write_bytes(saved(content))
        assert torch.equal(read_tensors(tmp_path / "weights")["a"], tied[: 1 if "optimizer" in content else 64])


SPECS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "repeats": (lambda spec: spec["stages"][0].update(repeats=1_000_000), "BLOCKS"),
    "stages": (lambda spec: spec.update(stages=[spec["stages"][0]] * 1500 + spec["stages"]), "BLOCKS"),
    "image_size": (lambda spec: spec.update(image_size=1_000_000), "IMAGE_SIZE"),
    "widths": (lambda spec: spec.update(widths=[10**9]), "WIDTHS"),
    "paths": (lambda spec: spec.update(widths=[10] * 12, norm={"kind": "group", "group_size": 16}), "PATHS"),
    "in_channels": (lambda spec: spec.update(in_channels=10**9), "CHANNELS"),
    "out": (lambda spec: spec["stages"][0].update(out=10**9), "CHANNELS"),
    "num_classes": (lambda spec: spec.update(num_classes=10**12), "CLASSES"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dsnet.save(create_model("ds_mobilenet_v1_tiny", num_classes=3).eval(), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("field", SPECS)
def test_descriptions_of_huge_networks(field: str, folder: Path, tmp_path: Path) -> None:
    change, name = SPECS[field]
    content = json.loads((folder / MODEL).read_text())
    del content["digest"]
    change(content["spec"])
    (tmp_path / MODEL).write_text(json.dumps(with_digest(content)))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    before, start = memory(), time.process_time()
    for read in (dsnet.load, dsnet.tasks.blank):
        with pytest.raises(CheckpointError, match=rf"and the limit is [\d,]+; set {PREFIX}{name} to raise it"):
            read(tmp_path)
    assert memory() - before < 300
    assert time.process_time() - start < 2


def nine_lives(merge: bool) -> str:
    """Nine aliases in each of nine levels: nine to the ninth values."""
    lines = ["a0: &a0 {x: 1}" if merge else "a0: &a0 [1]"]
    for level in range(1, 10):
        each = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{each}]}}" if merge else f"a{level}: &a{level} [{each}]")
    return "\n".join(lines)


def test_aliases_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text, message in (
        (nine_lives(False), "DSNET_MAX_VALUES"),
        (nine_lives(True), "DSNET_MAX_VALUES"),
        ("a: &a [*a]", "an alias stands inside of what it stands for"),
        ("a: " + "[" * 1000, "nested too deeply"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("#" * (2**20 + 1), "DSNET_MAX_YAML"),
    ):
        file.write_text(text)
        start = time.process_time()
        with pytest.raises(ValueError, match=message) as refused:
            read_yaml(file)
        assert "\n" not in str(refused.value)
        assert time.process_time() - start < 2
    file.write_text("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}")
    assert read_yaml(file) == yaml.safe_load(file.read_text()) == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}


def test_large_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MODEL).write_text("[" + "0," * 3000 + "0]")
    monkeypatch.setenv("DSNET_MAX_JSON", "5000")
    with pytest.raises(CheckpointError, match="in bytes is 6,003, and the limit is 5,000; set DSNET_MAX_JSON"):
        dsnet.load(tmp_path)


def test_a_limit_is_raised_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (StageSpec("conv", 4, repeats=900), StageSpec("conv", 4, repeats=101))
    with pytest.raises(ValueError, match="the number of blocks is 1,001, and the limit is 1,000; set DSNET_MAX_BLOCKS"):
        ModelSpec("long", stages)
    monkeypatch.setenv("DSNET_MAX_BLOCKS", "1001")
    assert ModelSpec("long", stages)
    for wrong in ("many", "-1", "9" * 19, "\u0663"):
        monkeypatch.setenv("DSNET_MAX_BLOCKS", wrong)
        with pytest.raises(ValueError, match=r"DSNET_MAX_BLOCKS is .*; it must be a whole number of at most 18 digits"):
            ModelSpec("long", stages)
    for name in LIMITS:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
        allow(name, limit(name), "it is")
        with pytest.raises(ValueError, match="it is more than 10\\^18, and the limit"):
            allow(name, 10**5000, "it is")


def test_costs_of_paths_without_end() -> None:
    row = (Cost(1),) * 100
    heads = (Cost(1),) * 100
    steps = ((row,), *((row,) * 100 for _ in range(4)))
    routers = tuple((Cost(),) * len(step) for step in steps)
    with pytest.raises(ValueError, match="the number of paths is 10,000,000,000, and the limit is 1,000,000"):
        CostTable(32, Cost(1), steps, routers, heads, Cost(1))


def test_the_documentation_lists_every_limit() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    for name, most in LIMITS.items():
        line = next(line for line in text.splitlines() if f"`{PREFIX}{name.upper()}`" in line and line.startswith("|"))
        assert f"{most:,}" in line
