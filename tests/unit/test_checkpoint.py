from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import dsnet
from dsnet import checkpoint
from dsnet.checkpoint import MODEL, WEIGHTS
from dsnet.errors import CheckpointError
from dsnet.files import with_digest, write_whole
from dsnet.models import Budget, Card, Preprocessing, Supernet
from dsnet.nn import RouterSpec, SliceNorm
from dsnet.training import with_fresh_router
from support.networks import CHOOSING, images, randomised

CARD = Card(
    classes=tuple("abcdefg"),
    preprocessing=Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1), crop=1.0, interpolation="bicubic"),
    budgets=(Budget(1e6, 0.25, 0.9, 32), Budget(2e6, 0.0, 0.95, 32)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    net.card = CARD
    return dsnet.save(net, tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in CHOOSING if name.startswith("ds_")])
def test_save_and_load_is_bitwise(name: str, tmp_path: Path) -> None:
    net = randomised(name, dtype=torch.float32, routing=[0, 1, 3])
    again = dsnet.load(dsnet.save(net, tmp_path))
    assert again.spec == net.spec
    assert not again.training
    state = again.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in net.state_dict().items())


def test_load_in_a_new_process_gives_the_same_bits(tmp_path: Path) -> None:
    net = randomised("ds_resnet_tiny", dtype=torch.float32)
    dsnet.save(net, tmp_path)
    x = images(net)
    safetensors.torch.save_file({"x": x}, tmp_path / "x.safetensors")
    program = (
        "import sys, torch, dsnet, safetensors.torch as st; torch.set_num_threads(1); "
        "x = st.load_file(sys.argv[1] + '/x.safetensors')['x']; net = dsnet.load(sys.argv[1]); "
        "st.save_file({'y': net(x, (0, 3, 1, 2)).detach()}, sys.argv[1] + '/y.safetensors')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    y = safetensors.torch.load_file(tmp_path / "y.safetensors")["y"]
    assert torch.equal(y, net(x, (0, 3, 1, 2)))


def test_the_card_comes_along_and_can_be_replaced(folder: Path) -> None:
    net = dsnet.load(folder)
    assert net.card == CARD
    net.card = replace(CARD, budgets=())
    dsnet.save(net, folder)
    assert dsnet.load(folder).card == replace(CARD, budgets=())


def test_a_card_of_another_network_is_refused(folder: Path) -> None:
    net = dsnet.load(folder)
    net.card = replace(CARD, classes=("cat", "dog"))
    with pytest.raises(ValueError, match="names 2 classes but the network has 7 outputs"):
        dsnet.save(net, folder)
    net.card = replace(CARD, preprocessing=Preprocessing.for_channels(1))
    with pytest.raises(ValueError, match="normalises 1 channels but the network takes 3"):
        dsnet.save(net, folder)
    assert dsnet.load(folder).card == CARD


def test_double_precision_is_kept(tmp_path: Path) -> None:
    net = randomised("ds_resnet_tiny")
    again = dsnet.load(dsnet.save(net, tmp_path))
    x = images(net)
    choose = lambda point, scores: torch.eye(4, dtype=torch.float64)[:3]  # noqa: E731
    assert torch.equal(again.forward_mixed(x, choose)[0], net.forward_mixed(x, choose)[0])


def test_loading_does_not_move_the_random_generator(folder: Path) -> None:
    state = torch.get_rng_state()
    dsnet.load(folder)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("file", [WEIGHTS, MODEL])
def test_every_flipped_bit_is_detected(folder: Path, file: str) -> None:
    data = (folder / file).read_bytes()
    for position in range(0, len(data), max(1, len(data) // 40)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 7)
        (folder / file).write_bytes(damaged)
        if file == MODEL and chr(data[position]).isspace() and chr(damaged[position]).isspace():
            continue  # white space between JSON tokens carries no content
        with pytest.raises(CheckpointError, match=str(folder)):
            dsnet.load(folder)


@pytest.mark.parametrize("file", [WEIGHTS, MODEL])
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.999])
def test_truncated_files_are_refused(folder: Path, file: str, keep: float) -> None:
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    with pytest.raises(CheckpointError, match=f"{file} .*truncated"):
        dsnet.load(folder)


def rewrite(folder: Path, change) -> None:
    """A consistent checkpoint with other tensors: digests are right, the content is not."""
    net = dsnet.load(folder)
    tensors = change(dict(net.state_dict()))
    fake = Supernet(net.spec)
    fake.state_dict = lambda: tensors  # type: ignore[method-assign]
    dsnet.save(fake, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: {k: v for k, v in t.items() if k != "head.classifier.bias"},
            "misses 1 tensors.*head.classifier.bias",
        ),
        (lambda t: {**t, "extra": torch.zeros(1)}, "1 tensors that the network lacks.*extra"),
        (lambda t: {**t, "head.classifier.bias": torch.zeros(3)}, r"shape \(3,\) but the network needs \(7,\)"),
    ],
)
def test_other_tensors_are_refused(folder: Path, change, message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        dsnet.load(folder)


def test_other_wrong_places_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is not a model folder: there is no model.json"):
        dsnet.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="run `dsnet import`"):
        dsnet.load(folder / WEIGHTS)
    redescribe(folder, format=99)
    with pytest.raises(CheckpointError, match="has format 99 but dsnet"):
        dsnet.load(folder)
    (folder / MODEL).write_text("[]")
    with pytest.raises(CheckpointError, match="not written by dsnet"):
        dsnet.load(folder)


def redescribe(folder: Path, **changes: object) -> None:
    """A description whose digest is right and whose content is not."""
    content = json.loads((folder / MODEL).read_text()) | changes
    del content["digest"]
    (folder / MODEL).write_text(json.dumps(with_digest(content)))


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": None},
        {"spec": {}},
        {"card": None},
        {"card": {"classes": [], "budgets": [{"madds": "x"}], "preprocessing": {}}},
        {"weights": None},
        {"weights": {}},
    ],
)
def test_descriptions_of_wrong_types_are_refused(folder: Path, changes: dict) -> None:
    redescribe(folder, **changes)
    with pytest.raises(CheckpointError, match=r"model\.json"):
        dsnet.load(folder)


@pytest.mark.parametrize("key", ["stages", "widths", "norm", "gate", "num_classes", "routing", "name", "image_size"])
@pytest.mark.parametrize("value", [None, [None], {}, "x", -1, 10**12])
def test_specs_of_wrong_types_are_refused(folder: Path, key: str, value: object) -> None:
    spec = json.loads((folder / MODEL).read_text())["spec"]
    if (key, value) in (("name", "x"), ("image_size", 10**12), ("routing", None), ("routing", {})):
        return  # another valid spec of the same network
    redescribe(folder, spec={**spec, key: value})
    with pytest.raises(CheckpointError, match=str(folder)):
        dsnet.load(folder)


def test_networks_of_unknown_tasks_are_refused(folder: Path) -> None:
    spec = json.loads((folder / MODEL).read_text())["spec"]
    redescribe(folder, spec={**spec, "task": "poetry"})
    with pytest.raises(CheckpointError, match="holds a network for poetry, which dsnet does not know"):
        dsnet.load(folder)


def test_integers_in_place_of_weights_are_refused(folder: Path) -> None:
    rewrite(folder, lambda t: {**t, "head.classifier.bias": torch.zeros(7, dtype=torch.long)})
    with pytest.raises(CheckpointError, match=r"'head.classifier.bias' is torch.int64"):
        dsnet.load(folder)


def test_a_save_that_fails_or_is_cut_short_leaves_a_model_that_loads(folder: Path, monkeypatch) -> None:
    net = dsnet.load(folder)
    net.card = replace(CARD, budgets=(Budget(1e6, 0.0, float("nan"), 32),))
    with pytest.raises(ValueError, match="nothing was saved"):
        dsnet.save(net, folder)
    assert dsnet.load(folder).card == CARD
    with torch.no_grad():
        net.head.classifier.bias.add_(1)
    net.card = Card()
    writes = []

    def crash_at(number: int):
        def write(file: Path, data: bytes) -> None:
            writes.append(file)
            if len(writes) > number:
                raise KeyboardInterrupt
            write_whole(file, data)

        return write

    for number, expected in ((0, CARD), (1, CARD)):  # before the weights, before the description
        writes.clear()
        monkeypatch.setattr(checkpoint, "write_whole", crash_at(number))
        with pytest.raises(KeyboardInterrupt):
            dsnet.save(net, folder)
        assert dsnet.load(folder).card == expected
    monkeypatch.setattr(checkpoint, "write_whole", write_whole)
    old = (folder / WEIGHTS).read_bytes()
    dsnet.save(net, folder)  # and between the description and the last rename
    (folder / WEIGHTS).rename(folder / checkpoint.INCOMING)
    (folder / WEIGHTS).write_bytes(old)
    assert torch.equal(dsnet.load(folder).head.classifier.bias, net.head.classifier.bias)


def test_only_supernets_are_saved_and_compiled_ones_unwrapped(folder: Path, tmp_path: Path) -> None:
    net = dsnet.load(folder)
    with pytest.raises(ValueError, match=r"only a Supernet or another task.s network can be saved, not a SubNetwork"):
        dsnet.save(dsnet.extract(net, (0,)), folder)
    dsnet.save(torch.compile(net), tmp_path / "compiled")
    assert dsnet.load(tmp_path / "compiled").spec == net.spec


def test_mixed_precision_is_kept(folder: Path, tmp_path: Path) -> None:
    net = dsnet.load(folder).half()
    for module in net.modules():
        if isinstance(module, SliceNorm):
            module.float()
    again = dsnet.load(dsnet.save(net, tmp_path / "half")).state_dict()
    assert all(again[name].dtype == tensor.dtype for name, tensor in net.state_dict().items())


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*file \(No space left on device\); what was there before"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


FIRST = {  # the keys of a spec's parts in the first version that could be saved
    "gate": {"attention", "activation", "reduction", "slimming", "shared"},
    "router": {"kind", "targets", "hidden"},
    "norm": {"kind", "group_size"},
}


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"])
def test_models_of_the_first_version_load(name: str, tmp_path: Path) -> None:
    """A key that is added to a spec needs the value that it has in models without it."""
    net = randomised(name)
    dsnet.save(with_fresh_router(net, replace(net.spec, router=RouterSpec("gate", "correctness"))), tmp_path)
    file = tmp_path / "model.json"
    about = json.loads(file.read_text())
    for part, known in FIRST.items():
        about["spec"][part] = {key: value for key, value in about["spec"][part].items() if key in known}
    del about["digest"]
    file.write_text(json.dumps(with_digest(about)))
    assert dsnet.load(tmp_path).spec.name == name
