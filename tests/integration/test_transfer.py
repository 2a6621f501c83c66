"""dsnet train --from: a trained supernet on other data, with and without its gates."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.config import CONFIG
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.tasks import read_config
from dsnet.tasks.classification.transfer import adapted_stem, transferred
from support.folders import make_folder
from support.networks import assert_close, images, randomised
from support.runs import SHORT

GATED = ["--sgs.router", "gate", "--sgs.targets", "try_best"]
CHEAP_FIRST = ["--sgs.router", "cheap_first", "--sgs.targets", "correctness"]
FOLDER = ["--data.dataset", "folder", "--data.image_size", "16"]
BATCH = ["--optim.batch_size", "8", "--sgs_optim.batch_size", "8"]


@pytest.fixture
def source(trained_gate: Path) -> Path:
    """A routed network for the grey digits."""
    return trained_gate


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Coloured images of three classes."""
    return make_folder(tmp_path_factory.mktemp("photos"))


def train(source: Path, photos: Path, out: Path, *words: str) -> int:
    return main(
        ["train", "--from", str(source), *FOLDER, "--data.root", str(photos), "--out", str(out), *SHORT, *BATCH, *words]
    )


def test_what_the_source_knows_goes_over(source: Path, photos: Path) -> None:
    data = open_dataset(DataConfig("folder", root=str(photos), image_size=24))
    old = dsnet.load(source)
    net, account = transferred(old, data)
    assert net.spec.widths == old.spec.widths
    assert (net.spec.num_classes, net.spec.in_channels, net.spec.image_size) == (3, 3, 24)
    state, before = net.state_dict(), old.state_dict()
    assert set(account.fresh) == {"head.classifier.weight", "head.classifier.bias"}
    assert set(account.adapted) == {"front.blocks.0.conv.weight"}
    assert set(account.loaded) | set(account.fresh) | set(account.adapted) == set(state)
    assert all(torch.equal(state[name], before[name]) for name in account.loaded)
    assert any(name.endswith("running_var") for name in account.loaded)  # per-width statistics follow
    assert "different" in "\n".join(account.lines())
    assert not account.exact  # the stem sees other channels


def test_the_same_classes_keep_their_classifier(source: Path) -> None:
    data = open_dataset(DataConfig())
    old = dsnet.load(source)
    net, account = transferred(old, data)
    assert not account.fresh
    assert not account.adapted
    assert account.exact
    x = data.test.load(data.test.ids[:4]).images
    assert_close(net.eval()(x, (2,)).detach(), old(x, (2,)).detach(), 1e-6)


@pytest.mark.parametrize(("old", "new"), [(3, 1), (1, 3), (3, 4)])
def test_a_grey_image_means_the_same_to_a_stem_of_other_channels(old: int, new: int) -> None:
    weight = torch.randn(5, old, 3, 3, dtype=torch.float64)
    grey = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    expected = torch.conv2d(grey.expand(-1, old, -1, -1), weight)
    assert_close(torch.conv2d(grey.expand(-1, new, -1, -1), adapted_stem(weight, new)), expected)


def test_transfer_fine_tunes_both_stages(
    source: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pets"
    assert train(source, photos, out) == 0
    printed = capsys.readouterr().out
    assert f"from {source}:" in printed
    assert (
        "2 fresh:\n    because the classes are different:\n      head.classifier.weight\n      head.classifier.bias"
        in printed
    )
    assert "1 adapted:\n    1 input channels became 3:\n      front.blocks.0.conv.weight" in printed
    net = dsnet.load(out)
    assert net.card.classes == ("cat", "dog", "emu")
    assert net.card.budgets
    assert net.spec.router is not None
    assert net.spec.router.kind == "gate"  # sgs follows the source's config; data and optimisation do not
    config = read_config(out / CONFIG)
    assert config.source == str(source)
    assert config.data.dataset == "folder"
    result = json.loads((out / "results" / "test.json").read_text())
    assert result["training"]["source"] == source.name


def test_gate_transfer_starts_from_the_old_router(source: Path, photos: Path, tmp_path: Path) -> None:
    still = ["--sgs_optim.lr", "1e-12", "--sgs.momentum", "0"]
    heads = {name: tensor for name, tensor in dsnet.load(source).state_dict().items() if ".slimming." in name}
    assert heads
    found = {}
    for name, words in (("with", ["--gate_from", str(source)]), ("without", [])):
        assert train(source, photos, tmp_path / name, *still, *words) == 0
        state = dsnet.load(tmp_path / name).state_dict()
        found[name] = all(torch.allclose(state[key], tensor, atol=1e-6) for key, tensor in heads.items())
    assert found == {"with": True, "without": False}
    again = ["train", "--stage", "gate", "--from", str(tmp_path / "without"), "--gate_from", str(source), *still]
    assert main([*again, "--out", str(tmp_path / "later")]) == 0
    state = dsnet.load(tmp_path / "later").state_dict()
    assert all(torch.allclose(state[key], tensor, atol=1e-6) for key, tensor in heads.items())


def test_a_transferred_run_resumes_without_its_source(
    source: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsnet.training import IEB

    moved = tmp_path / "source"
    dsnet.save(dsnet.load(source), moved)
    words = [*GATED, "--optim.epochs", "2", "--gate_from", str(moved)]
    assert train(moved, photos, tmp_path / "whole", *words) == 0
    draw, steps = IEB.draw, []

    def stopped(self: IEB, *args: object, **options: object) -> object:
        steps.append(self)
        if len(steps) == 6:
            signal.raise_signal(signal.SIGTERM)
        return draw(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(IEB, "draw", stopped)
    assert train(moved, photos, tmp_path / "broken", *words) == 128 + 15
    for file in moved.iterdir():
        file.unlink()
    assert main(["train", "--resume", str(tmp_path / "broken")]) == 0
    whole, broken = (dsnet.load(tmp_path / name).state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


def test_what_does_not_fit_is_refused(
    source: Path, trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unrouted = tmp_path / "unrouted"
    dsnet.save(randomised("ds_mobilenet_v1_tiny").float(), unrouted)
    for words, message in (
        (["--model.name", "ds_resnet_tiny"], "holds a ds_mobilenet_v1_tiny (widths [6]), not a ds_resnet_tiny; leave"),
        (["--data.image_size", "2"], "image size 2 is too small"),
        (["--gate_from", str(unrouted)], "has no router to start from"),
        (["--gate_from", str(trained)], "has router cheap_first with targets correctness, but gate"),
        (["--gate_from", str(source), "--model.routing", "[0, 1]"], "chooses among widths [(0, 2, 3)]"),
        (
            ["--gate_from", str(trained), "--model.routing", "[0, 1, 2, 3, 4, 5]", *CHEAP_FIRST],
            "reads answers of 10 classes but the data has 3",
        ),
        (["--gate_from", str(tmp_path / "nowhere")], "nowhere is not a model folder"),
    ):
        assert train(source, photos, tmp_path / "out", *words) == 2, words
        error = capsys.readouterr().err
        assert message in error, error
        assert not (tmp_path / "out").exists()


def test_an_imported_folder_is_a_source_too(photos: Path, tmp_path: Path) -> None:
    net = randomised("ds_mobilenet_v1_tiny").float()
    assert images(net).shape[1] == 3
    dsnet.save(net, tmp_path / "start")
    assert train(tmp_path / "start", photos, tmp_path / "out", "--stage", "supernet") == 0
    assert dsnet.load(tmp_path / "out").spec.num_classes == 3


def test_a_static_network_learns_from_a_run_and_resumes_without_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsnet.training import IEB

    moved = Path(shutil.copytree(trained, tmp_path / "teacher"))
    small = ["train", *SHORT, "--optim.epochs", "2", "--model.name", "mobilenet_v1_tiny", "--model.width", "0.5"]
    words = [*small, "--distill", str(moved)]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    line = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[0])
    assert {"loss/widest", "loss/distilled"} <= line.keys()
    result = json.loads((tmp_path / "whole" / "results" / "test.json").read_text())
    assert result["training"]["distill"] == "teacher"
    draw, steps = IEB.draw, []

    def stopped(self: IEB, *args: object, **options: object) -> object:
        steps.append(self)
        if len(steps) == 6:
            signal.raise_signal(signal.SIGTERM)
        return draw(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(IEB, "draw", stopped)
    assert main([*words, "--out", str(tmp_path / "broken")]) == 128 + 15
    shutil.rmtree(moved)
    assert main(["train", "--resume", str(tmp_path / "broken")]) == 0
    whole, broken = (tmp_path / name / "model.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()


@pytest.mark.parametrize("teacher", ["guide", "start"])
def test_a_run_that_is_overwritten_does_not_teach_the_next(trained: Path, tmp_path: Path, teacher: str) -> None:
    """Its folder holds a copy of its own teacher."""
    net, other = dsnet.load(trained), Path(shutil.copytree(trained, tmp_path / "other"))
    with torch.no_grad():
        net.head.classifier.weight.neg_()
    dsnet.save(net, other)
    words = ["train", *SHORT, "--optim.epochs", "1", "--stage", "supernet", "--optim.lr", "0.01"]
    for out, source in (("a", trained), ("b", other), ("a", other)):
        named = ["--distill"] if teacher == "guide" else ["--ieb.teacher", "original", "--from"]
        small = ["--model.name", "mobilenet_v1_tiny"] if teacher == "guide" else []
        again = ["--overwrite"] if (tmp_path / out).exists() else []
        assert main([*words, *small, *named, str(source), "--out", str(tmp_path / out), *again]) == 0
        if (out, source) == ("a", trained):
            before = (tmp_path / "a" / "model.safetensors").read_bytes()
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b
    assert a != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.image_size", "20"], "the data is not the one that the run"),
        (["--data.split_seed", "1"], "the data is not the one that the run"),
        (["--distill", "nowhere"], "nowhere is not a model folder"),
        (["--stage", "gate", "--from", "RUN"], "--distill is for stage I"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    words: list[str], message: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word.replace("RUN", str(trained)) for word in words]
    assert main(["train", *SHORT, "--distill", str(trained), "--out", str(tmp_path / "out"), *named]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
