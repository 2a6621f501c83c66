"""The router `cheap_first` was called `slim_first`: what was written with that name is read, and no digest changes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dsnet import export_bundle, export_onnx, open_runner
from dsnet.config import config_file, read_yaml
from dsnet.experiments import SCALES
from dsnet.experiments.catalogue.networks import CHEAP_FIRST, MBNET
from dsnet.experiments.recipe import cell_of
from dsnet.files import with_digest
from dsnet.manifest import Manifest
from dsnet.models.parts import weights_digest
from dsnet.routers import KINDS, RENAMED, RouterSpec, former, present
from dsnet.runtime.seal import sealed
from dsnet.schema import parse, parse_json, plain, to_json
from dsnet.tasks import config_from, load, save
from dsnet.training import SGSConfig, with_fresh_router
from support.networks import randomised

OLD, NEW = "slim_first", "cheap_first"


def network() -> Any:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    return with_fresh_router(net, replace(net.spec, router=RouterSpec(NEW, "correctness"))).eval()


def older(text: str) -> str:
    assert NEW in text
    return text.replace(NEW, OLD)


def test_one_place_knows_both_names() -> None:
    assert RENAMED == {OLD: NEW}
    assert (present(OLD), present(NEW), former(NEW), former(OLD)) == (NEW, NEW, OLD, OLD)
    assert all(present(kind) == kind for kind in KINDS)
    assert RouterSpec(OLD, "correctness") == RouterSpec(NEW, "correctness")  # type: ignore[arg-type]
    assert SGSConfig(router=OLD) == SGSConfig(router=NEW)  # type: ignore[arg-type]


def test_configs_and_specs_with_the_old_name_are_read() -> None:
    assert config_from({"sgs": {"router": OLD}}).sgs.router == NEW  # type: ignore[attr-defined]
    assert parse(RouterSpec, json.loads(older(to_json(RouterSpec(NEW)))), strict=True).kind == NEW
    assert read_yaml(config_file("digits"))["sgs"]["router"] == NEW
    with pytest.raises(ValueError, match=r"must be one of .*cheap_first") as error:
        config_from({"sgs": {"router": "slimfirst"}})
    assert OLD not in str(error.value)  # it is not offered


def test_runs_with_the_old_name_are_loaded(tmp_path: Path) -> None:
    net = network()
    save(net, tmp_path)
    file = tmp_path / "model.json"
    written = json.loads(older(file.read_text()))
    del written["digest"]
    file.write_text(json.dumps(with_digest(written)))
    found = load(tmp_path)
    assert found.spec == net.spec
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(found(x, found.space.widest), net(x, net.space.widest))


def test_exported_files_with_the_old_name_are_opened(tmp_path: Path) -> None:
    net, x = network(), torch.randn(3, 3, 32, 32)
    file = export_onnx(net, tmp_path / "model.onnx")
    proto = onnx.load(file)
    entries = {entry.key: entry.value for entry in proto.metadata_props if entry.key != "dsnet.sha256"}
    onnx.helper.set_model_props(proto, {**entries, "dsnet.manifest": older(entries["dsnet.manifest"])})
    (tmp_path / "old.onnx").write_bytes(sealed(proto.SerializeToString()))
    first, second = (open_runner(tmp_path / name, threads=1) for name in ("model.onnx", "old.onnx"))
    assert second.manifest == first.manifest
    assert torch.equal(second.run(x).paths, first.run(x).paths)
    manifest = open_runner(export_bundle(net, tmp_path / "bundle"), threads=1).manifest
    assert parse_json(Manifest, older(to_json(manifest))) == manifest


def test_digests_are_made_of_the_first_name() -> None:
    net = network()
    spec = json.loads(older(json.dumps(plain(net.spec))))
    kept = {key: value for key, value in spec.items() if value or key not in ("sizes", "candidates")}
    kept["router"] = {key: value for key, value in spec["router"].items() if value or key != "candidates"}
    digest = hashlib.sha256(json.dumps(kept).encode())
    for name, tensor in sorted(net.state_dict().items()):
        held = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
        digest.update(f"{name} {tuple(held.shape)}".encode())
        digest.update(held.numpy().tobytes())
    assert weights_digest(net) == digest.hexdigest()


def test_runs_of_experiments_keep_their_names() -> None:
    cell = cell_of(MBNET.gates(CHEAP_FIRST), SCALES["cpu"], 0, runs=Path("runs"), root="data")
    assert cell.name == "mbnet-gate-slim_first-seed0-15f8d904"  # as it was called before
    assert cell.config.sgs.router == NEW  # type: ignore[attr-defined]
