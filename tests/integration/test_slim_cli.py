"""The way from a CNN to a routed network by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dsnet.cli import main
from dsnet.runs.config import new_config, recipe_for
from dsnet.tasks import load, read_config
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.task import task
from support.cnns import Residual, lively
from support.folders import make_folder

FACTORY = "support.cnns:Residual"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted network, with the weights of a file."""
    folder = tmp_path_factory.mktemp("slim")
    torch.manual_seed(0)
    torch.save(lively(Residual()).state_dict(), folder / "weights.pth")
    words = ["--weights", str(folder / "weights.pth"), "--image-size", "16", "--widths", "0.3/0.6", "1"]
    assert main(["slim", FACTORY, *words, "--out", str(folder / "start")]) == 0
    return folder / "start"


def test_the_folder_holds_the_network(start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, x = lively(Residual()), torch.randn(2, 3, 16, 16)
    net = load(start)
    with torch.no_grad():
        assert torch.allclose(net(x, (1,)), model(x), atol=1e-5)
    capsys.readouterr()
    assert main(["info", str(start), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["model"], about["image_size"], about["num_classes"]) == ("residual", 16, 5)
    assert [row["share"] < 1 for row in about["widths"]] == [True, False]


def test_wrong_words_end_with_one_line(start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, error in (
        ([FACTORY, "--out", str(start)], "already holds a model"),
        (["support.cnns:conv", "--out", "new"], "needs the arguments cin, cout"),
        ([FACTORY, "--widths", "half", "1", "--out", "new"], "width 'half' is not understood"),
        ([FACTORY, "--weights", "none.pth", "--out", "new"], "none.pth does not exist"),
        ([FACTORY, "--image_size", "16", "--mean", "0.5", "--out", "new"], "must have 3 numbers"),
        (["efficientnet_lite0", "--mean", "0.5", "0.5", "0.5", "--out", "new"], "leave --mean and --std out"),
        ([FACTORY, "--override", "two.0.0", "--out", "new"], "override 'two.0.0' is not understood; give LAYER=SHARES"),
        ([FACTORY, "--image_size", "16", "--override", "last=1,1,1,1", "--out", "new"], "there is no such layer"),
        ([FACTORY, "--image_size", "16", "--cut", "nowhere", "--out", "new"], f"{FACTORY}: the network cannot be cut"),
    ):
        assert main(["slim", *words]) == 2
        said = capsys.readouterr().err
        assert error in said
        assert said.count("\n") == 1
    assert not Path("new").exists()
    for words in (["import", str(start), "--out", "new"], ["import", str(start), "--as", "resnet50", "--out", "new"]):
        assert main(words) == 2
        assert "was made by `dsnet slim` and has no blocks" in capsys.readouterr().err


def test_single_layers_have_shares_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--image_size", "16", "--widths", "0.5", "1", "--cut", "stem", "--json", "--out", str(tmp_path / "start")]
    own = ["--override", "two.0.0=1,1", "--override", "one.0.0=0.34,1"]
    assert main(["slim", FACTORY, *words, *own]) == 0
    rows = {tuple(row["layers"]): row for row in json.loads(capsys.readouterr().out)["groups"]}
    assert rows[("two.0.0",)]["channels"] == [16, 16]
    assert rows[("one.0.0",)]["channels"] == [8, 24]
    assert rows[("one.1", "project", "two.1")]["channels"] == [16, 32]
    assert load(tmp_path / "start").spec.channels((0,)) == [8, 16]  # of layers that are slimmed


def test_training_takes_the_normalisation_and_the_recipe_for_pretrained_weights(start: Path, tmp_path: Path) -> None:
    pictures = make_folder(tmp_path / "pictures")
    keys = {"data": {"root": str(pictures)}}
    recipe = recipe_for(ClassificationConfig, str(start), keys)
    assert recipe == "pretrained"
    assert recipe_for(ClassificationConfig, None, keys) == "folder"
    config: Any = new_config(ClassificationConfig, str(start), keys, recipe=recipe)
    card = load(start).card
    assert (config.data.mean, config.data.std) == (card.preprocessing.mean, card.preprocessing.std)
    assert (config.freeze, config.optim.name, config.model.image_size) == ("front", "adamw", 16)
    data = task.open_data(config)
    assert (data.mean, data.image_size) == (card.preprocessing.mean, 16)


def test_a_frozen_front_stays_as_it_is(start: Path, tmp_path: Path) -> None:
    words = ["--data.root", str(make_folder(tmp_path / "pictures")), "--optim.steps", "3", "--optim.batch_size", "4"]
    run = tmp_path / "run"
    assert main(["train", "--from", str(start), "--out", str(run), *words]) == 0
    before, after = load(start).state_dict(), load(run).state_dict()
    front = [key for key in before if key.startswith("front.")]
    assert front
    assert all(torch.equal(before[key], after[key]) for key in front)
    behind = [key for key in before if key.startswith("segments.") and before[key].is_floating_point()]
    assert any(not torch.equal(before[key], after[key]) for key in behind)
    config = read_config(run / "config.yaml")
    again: Any = new_config(ClassificationConfig, str(run), {"data": {"root": config.data.root}})
    assert (again.data.mean, again.data.std) == (config.data.mean, config.data.std)


def test_slim_widths_learn_from_the_original_without_labels(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, short = make_folder(tmp_path / "pictures"), ["--optim.steps", "3", "--optim.batch_size", "4"]
    distil = ["train", "--config", "distil", "--from", str(start), "--data.root", str(pictures), *short]
    pre = tmp_path / "pre"
    assert main([*distil, "--data.calibration", "0.2", "--out", str(pre)]) == 0
    net, original = load(pre), load(start)
    assert (net.spec.num_classes, net.card.classes) == (5, ())
    assert net.card.preprocessing.mean == original.card.preprocessing.mean
    line = json.loads((pre / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"loss/widest", "loss/random1", "loss/slimmest", "calibration/slimmest"} <= set(line)
    assert main(["train", "--resume", str(pre)]) == 0
    assert all(torch.equal(tensor, load(pre).state_dict()[key]) for key, tensor in net.state_dict().items())
    keys = {"data": {"root": str(pictures)}}
    assert recipe_for(ClassificationConfig, str(pre), keys) == "pretrained"
    config: Any = new_config(ClassificationConfig, str(pre), keys, recipe="pretrained")
    assert (config.ieb.teacher, config.model.widths, config.data.dataset) == ("inplace", [2], "folder")
    capsys.readouterr()
    for words, error in (
        (["eval", str(pre)], "pictures has no labels to evaluate with"),
        (["train", "--data.dataset", "images", "--data.root", str(pictures)], "data.dataset images has no labels"),
        (["train", "--ieb.teacher", "original"], "name it with --from RUN"),
        (["train", "--from", str(pre), "--data.root", str(pictures), "--ieb.teacher", "original"], "5 other classes"),
        (["train", "--ieb.only", "0"], "add --stage supernet"),
    ):
        assert main([*words, *(["--out", "new"] if words[0] == "train" else [])]) == 2
        said = capsys.readouterr().err
        assert error in said
        assert said.count("\n") == 1


def test_one_width_is_trained_alone_and_a_router_on_held_out_images(start: Path, tmp_path: Path) -> None:
    pictures, short = make_folder(tmp_path / "pictures"), ["--optim.steps", "2", "--optim.batch_size", "4"]
    words = ["train", "--from", str(start), "--data.root", str(pictures), *short]
    assert (
        main(
            [
                *words,
                "--stage",
                "supernet",
                "--ieb.only",
                "0",
                "--optim.weight_decay",
                "0",
                "--out",
                str(tmp_path / "narrow"),
            ]
        )
        == 0
    )
    line = json.loads((tmp_path / "narrow" / "metrics.jsonl").read_text().splitlines()[-1])
    assert [key for key in line if key.startswith("loss/")] == ["loss/widest"]
    assert [key for key in line if key.startswith("calibration/")] == ["calibration/width0"]
    before, after = load(start).state_dict(), load(tmp_path / "narrow").state_dict()
    wide = next(key for key in before if key.endswith("weight") and before[key].dim() == 4 and "segments" in key)
    assert torch.equal(before[wide][-1], after[wide][-1])  # a channel that the slim width lacks
    assert not torch.equal(before[wide][0], after[wide][0])
    routed = [*words, "--sgs.router", "cheap_first", "--sgs.held_out", "true", "--sgs_optim.steps", "2"]
    assert main([*routed, "--data.calibration", "0.25", "--out", str(tmp_path / "routed")]) == 0
    assert load(tmp_path / "routed").spec.router is not None


@pytest.mark.slow
def test_a_converted_network_is_trained_evaluated_exported_and_run(start: Path, tmp_path: Path) -> None:
    run, short = str(tmp_path / "run"), ["--optim.epochs", "1", "--sgs_optim.epochs", "1"]
    assert main(["train", "--from", str(start), "--out", run, *short]) == 0
    net = load(run)
    assert net.spec.router is not None
    assert net.spec.kind == "graph"
    for words in (["eval", run], ["recalibrate", run], ["export", run], ["export", run, "--bundle"]):
        assert main(words) == 0
    again = ["train", "--from", run, "--stage", "gate", "--sgs.router", "gate", "--out", str(tmp_path / "gate")]
    assert main([*again, *short[2:]]) == 0
    pixels = str(tmp_path / "grey.png")
    from PIL import Image

    Image.new("L", (16, 16), 90).save(pixels)
    for model in (run, f"{run}/model.onnx", f"{run}/bundle"):
        assert main(["predict", model, pixels]) == 0
