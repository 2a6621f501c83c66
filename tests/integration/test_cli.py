"""The command as users call it."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import COMMANDS, MODULES, main
from dsnet.cli.arguments import Parser
from dsnet.schema import flags
from dsnet.tasks import TASKS, named
from support.networks import MODELS, randomised


def test_models_lists_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in MODELS)
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == MODELS
    assert rows["ds_mobilenet_v1"]["madds_widest"] == 565445696
    assert rows["ds_resnet50"]["paths"] == 256


@pytest.mark.parametrize("name", MODELS)
def test_info_shows_every_width(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", name]) == 0
    shown = capsys.readouterr().out
    assert "100.0%" in shown
    assert main(["info", name, "--json", "--image-size", "64"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["image_size"] == 64
    shares = [row["share"] for row in content["widths"]]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(row["madds"] == row["madds_layers"] + row["madds_pools"] for row in content["widths"])


def test_info_of_a_path_a_multiplier_and_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["info", "ds_resnet50", "--path", "0,1,2,3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["widths"]
    assert (row["path"], row["channels"]) == ([0, 1, 2, 3], [64, 256, 768, 2048])
    assert main(["info", "mobilenet_v1", "--width", "0.5", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["widths"][0]["madds_layers"] == 149497088
    dsnet.save(randomised("ds_mobilenet_v1_tiny", routing=[0, 2]), tmp_path)
    assert main(["info", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["routing"], content["num_classes"]) == ([[0, 2]], 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "ds_mobilenet"], "model 'ds_mobilenet' is unknown; did you mean"),
        (["info", "ds_resnet50", "--path", "0,1"], "has 2 entries but the network has 4 choice points"),
        (["info", "ds_resnet50", "--path", "wide"], "path 'wide' is not a list of width indices"),
        (["info", "ds_resnet50", "--image_size", "7"], "image size 7 is too small"),
        (["info", "ds_resnet50", "--width", "0.5"], "takes no width multiplier"),
        (["info", "/"], "is not a model folder"),
        (["info", "no/where"], "no/where does not exist; give a folder that dsnet wrote"),
        (["import", "nowhere.pth", "--out", "x"], "nowhere.pth does not exist"),
    ],
)
def test_wrong_input_is_one_clear_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_every_command_takes_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--seed" in capsys.readouterr().out


def test_dsnet_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in COMMANDS)
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"dsnet {dsnet.__version__}\n"


@pytest.mark.parametrize("task", list(TASKS))
def test_the_help_of_train_fits_a_screen(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            main(["train", "--task", task, option])
        assert stop.value.code == 0
        shown[option] = capsys.readouterr().out
    assert shown["--help"].count("\n") <= 40
    kind = named(task).config
    assert set(kind.BASIC) <= {flag.name for flag in flags(kind)}
    for flag in flags(kind):
        assert flag.help[0].isupper()
        assert flag.help.endswith(".")
        assert (f" --{flag.name} " in shown["--help"]) == (flag.basic or flag.name == "task")
        assert f" --{flag.name} " in shown["--help-all"] or flag.name == "source"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "train"])
def test_help_is_in_whole_sentences(command: str) -> None:
    parser = Parser(prog="dsnet")
    import_module(f"dsnet.cli.{MODULES.get(command, command)}").add_arguments(parser)
    for action in parser._actions:
        assert action.help
        assert action.help[0].isupper()
        assert action.help.endswith(".")


@pytest.mark.parametrize("words", [["train-me"], ["info"], ["info", "ds_resnet50", "--imagesize", "7"]])
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["reproduce", "--seeds", "0,1"],
            "'0,1'; it must be a whole number, or several of them with spaces between",
        ),
        (["train", "--optim.epochs", "x"], "optim.epochs is 'x'; it must be a whole number"),
        (["train", "--optim.epochs", "0"], "optim.epochs is 0; it must be at least 1"),
        (["train", "--sgs.temperature", "-1"], "sgs.temperature is -1.0; it must be positive"),
        (["train", "--sgs.targets", "best"], "it must be one of correctness, kl, try_best, give_up, narrowest or null"),
        (["train", "--model.routing", "3"], "it must be a list like [0, 2] or a list like [[0, 2], [0, 2]] or null"),
        (["train", "--data.augment.scale", "1"], "data.augment.scale is 1; it must be a list like [0.5, 1.0]"),
        (["train", "--seed", "true"], "seed is True; it must be a whole number"),
        (["train", "--optim.lr"], "--optim.lr expected one argument"),
        (["train", "--config", "nowhere.yaml"], "config 'nowhere.yaml' does not exist; give the path of a YAML file"),
        (["train", "here"], "'here' is one argument too many"),
        (["train-me"], "the command 'train-me' is unknown; did you mean train?"),
        (["eval", "run", "--split", "all"], "--split is 'all'; it must be one of test, calibration, train"),
        (["info", "x", "--imagesize", "7"], "'--imagesize' is unknown; did you mean --image_size?"),
        (["import", "x"], "missing: --out; see `dsnet import --help`"),
        (["predict"], "missing: run, images; see `dsnet predict --help`"),
        (["train", "--learning-rate", "1"], "'--learning_rate' is unknown; did you mean --optim.lr or --sgs_optim.lr?"),
        (["train", "--router", "gate"], "'--router' is unknown; did you mean --sgs.router?"),
        (["eval", "nowhere", "--budgets", "0.5", "half"], "budget 'half' is not understood"),
        (["predict", "nowhere", "x.png", "--budget", "50"], "budget '50' has no unit; write 50% or 0.5"),
    ],
)
def test_wrong_values_name_value_and_limit(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(words))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_config_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("hello")
    assert main(["train", "--config", str(tmp_path / "notes")]) == 2
    assert "the config is 'hello'; it must be a YAML file" in capsys.readouterr().err


def test_import_writes_a_folder_that_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from support.weights import released_shapes

    file, out = tmp_path / "released.pth", tmp_path / "run"
    torch.save({"state_dict": {name: torch.rand(shape) for name, shape in released_shapes().items()}}, file)
    assert main(["import", str(file), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "conv_stem.weight  [24, 3, 3, 3] -> [16, 3, 3, 3]" in shown
    assert "bn1.aux_bn.1.running_mean" in shown
    assert dsnet.load(out).routing.choices == ((0, 1, 2, 3),)
    assert main(["import", str(file), "--out", str(out)]) == 2
    assert "already holds a model" in capsys.readouterr().err
    assert main(["import", str(file), "--out", str(tmp_path / "ema"), "--weights", "ema"]) == 2
    assert "has no EMA weights" in capsys.readouterr().err


def test_import_by_name_says_what_became_of_every_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from support.weights import mobilenet

    file, out = tmp_path / "mobilenetv1_100.pth", tmp_path / "run"
    torch.save(mobilenet(dtype=torch.float32), file)
    words = ["import", str(file), "--as", "ds_mobilenet_v1", "--sort", "l1", "--num-classes", "10"]
    assert main([*words, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "    conv_stem.weight  [32, 3, 3, 3] -> [16, 3, 3, 3]" in shown
    assert "    because it has 7 classes, 10 were asked for:\n      classifier.weight" in shown
    assert "  limit: fresh sigmoid attention scales every channel by about one half" in shown
    assert main(["info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_classes"] == 10
    assert main([*words, "--out", str(tmp_path / "same"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["cut"]["conv_stem.weight"] == [[32, 3, 3, 3], [16, 3, 3, 3]]
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_import_sorts_a_folder_and_moves_it_onto_another_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dsnet.save(randomised("us_mobilenet_v1", dtype=torch.float32), tmp_path / "us")
    assert main(["import", str(tmp_path / "us"), "--sort", "scale", "--out", str(tmp_path / "sorted")]) == 0
    assert "the widest path computes what the source computes" in capsys.readouterr().out
    words = ["import", str(tmp_path / "us"), "--as", "mobilenet_v1", "--out", str(tmp_path / "static")]
    assert main(words) == 0
    x = torch.randn(1, 3, 64, 64)
    widest = dsnet.load(tmp_path / "us")(x, (30,))
    assert torch.allclose(dsnet.load(tmp_path / "sorted")(x, (30,)), widest, atol=1e-3)
    assert torch.equal(dsnet.load(tmp_path / "static")(x, ()), widest)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            {"conv1.weight": torch.zeros(2)},
            ["--as", "resnet50"],
            "(conv1.weight) follow no scheme that dsnet knows",
        ),
        ({"weight": torch.zeros(2)}, [], "without, the authors' released DS-MBNet (bn1.aux_bn.0.running_mean)"),
        ({"a": 1}, ["--as", "resnet50"], "holds no tensors"),
        ([1], ["--as", "resnet50"], "holds a list instead of named tensors"),
        (None, ["--as", "resnet50"], "is damaged or not a file of weights"),
        ("plain", [], "this looks like a MobileNetV1 of timm; say which model it shall become with --as"),
        (
            "plain",
            ["--as", "ds_resnet50"],
            "choose ds_mobilenet_v1 or ds_mobilenet_v1_18 or ds_mobilenet_v1_fast or ds_mobilenet_v1_small",
        ),
        ("plain", ["--as", "ds_mobilenet"], "model 'ds_mobilenet' is unknown; did you mean"),
        ("plain", ["--as", "mobilenet_v1", "--num_classes", "0"], "num_classes is 0"),
    ],
)
def test_import_by_name_refuses_in_one_line(
    content: object, options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from support.weights import mobilenet

    file = tmp_path / "x.pth"
    torch.save(mobilenet(width=0.25, dtype=torch.float32) if content == "plain" else content, file)
    if content is None:
        file.write_bytes(file.read_bytes()[:100])
    assert main(["import", str(file), *options, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
