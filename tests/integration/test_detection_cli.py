"""Detection by the commands: train, resume, gate, evaluate, predict."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import dsnet
from dsnet.cli import main
from dsnet.models import eager
from dsnet.models.count import count
from dsnet.nn import RouterSpec
from dsnet.results import Evaluation, read
from dsnet.tasks import load as load_detector
from dsnet.tasks import read_config, traces_of
from dsnet.tasks.detection.task import new_detector, task
from dsnet.training import Interrupted, with_fresh_router
from dsnet.training.state import load_state
from support.folders import voc_folder
from support.networks import randomised
from support.runs import DETECTOR, drawing, train_detector

ROOT = Path(__file__).parents[2]
CONFIGS = Path(dsnet.__file__).parent / "configs"


@pytest.fixture
def run(detector: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shared detector, to write into."""
    return Path(shutil.copytree(detector / "run", tmp_path_factory.mktemp("copy") / "run"))


@pytest.fixture
def files(run: Path) -> dict[str, str]:
    """A run folder and its files."""
    return {name: str(run / name) for name in ("", "model.onnx", "path-3.onnx")}


def test_a_run_leaves_a_detector_that_routes(run: Path) -> None:
    detector = load_detector(run)
    assert detector.card.classes == ("blue", "red")
    assert detector.card.budgets
    assert detector.spec.backbone.router is not None
    result = read(run / "results" / "test.json", Evaluation)
    assert len(result.rows) == 6
    assert result.dynamic is not None
    assert [row.name for row in result.dynamic.rows] == ["S", "M", "L"]


def test_a_stopped_run_goes_on_bit_for_bit(detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsnet.training.loop import Loop

    save, calls = Loop.save, []

    def stop(loop: Loop) -> None:
        save(loop)
        calls.append(loop.progress.step)
        if loop.progress.step == 2 and len(calls) == 2:
            raise Interrupted(15, loop.folder)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "save", stop)
        assert train_detector(detector, tmp_path / "stopped") == 143
    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    whole, broken = (load_detector(folder).state_dict() for folder in (detector / "run", tmp_path / "stopped"))
    assert all(torch.equal(tensor, broken[name]) for name, tensor in whole.items())


def test_a_run_stopped_in_its_gate_stage_goes_on_bit_for_bit(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsnet.training.loop import Loop

    save = Loop.save

    def stop(loop: Loop) -> None:
        save(loop)
        if loop.folder.name == "gate" and loop.progress.step == 1:
            raise Interrupted(15, loop.folder)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "save", stop)
        assert train_detector(detector, tmp_path / "gate-stopped", "--save_steps", "1") == 143
    assert not (tmp_path / "gate-stopped" / "results").exists()
    before = (tmp_path / "gate-stopped" / "state" / "last.pt").stat().st_mtime_ns
    assert main(["train", "--resume", str(tmp_path / "gate-stopped")]) == 0
    assert (tmp_path / "gate-stopped" / "state" / "last.pt").stat().st_mtime_ns == before, (
        "stage I is not trained again"
    )
    folders = (detector / "run", tmp_path / "gate-stopped")
    states = [load_state(folder / "gate" / "state" / "last.pt") for folder in folders]
    assert states[0]["progress"]["step"] == states[1]["progress"]["step"] == 2
    whole, broken = map(load_detector, folders)
    assert whole.card == broken.card
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, broken.state_dict()[name]), name


def test_a_static_detector_has_no_gate(detector: Path, tmp_path: Path) -> None:
    assert train_detector(detector, tmp_path / "static", "--optim.epochs", "1", backbone="mobilenet_v1") == 0
    assert load_detector(tmp_path / "static").spec.backbone.router is None


@pytest.mark.slow
def test_a_converted_network_is_a_backbone(detector: Path, tmp_path: Path) -> None:
    """It needs statistics of all its widths, which a few images without labels give; its normalisation goes along."""
    words = ["--image_size", "64", "--widths", "0.5", "1", "--mean", "0.5", "0.4", "0.3", "--std", "0.2", "0.2", "0.2"]
    assert main(["slim", "support.cnns:Inverted", *words, "--out", str(tmp_path / "start")]) == 0
    data = ["--data.root", str(detector / "voc")]
    assert (
        main(
            [
                "train",
                "--task",
                "detection",
                *DETECTOR,
                *data,
                "--backbone",
                str(tmp_path / "start"),
                "--out",
                str(tmp_path / "no"),
            ]
        )
        == 2
    )
    short = ["--optim.steps", "2", "--optim.batch_size", "4", "--data.calibration", "0.2"]
    distil = ["--config", "distil", "--from", str(tmp_path / "start"), "--data.root", str(detector / "voc")]
    assert main(["train", *distil, *short, "--out", str(tmp_path / "backbone")]) == 0
    words = ["--backbone", str(tmp_path / "backbone"), "--taps", "[stride1, stride2]", "--out", str(tmp_path / "run")]
    assert main(["train", "--task", "detection", *DETECTOR, *data, *words]) == 0
    net = load_detector(tmp_path / "run")
    assert net.spec.taps == ("stride1", "stride2")
    assert net.card.preprocessing.mean == (0.5, 0.4, 0.3)
    assert main(["export", str(tmp_path / "run")]) == 0
    assert main(["eval", str(tmp_path / "run")]) == 0


def test_a_gate_is_trained_for_a_finished_detector(detector: Path, tmp_path: Path) -> None:
    words = ["train", "--stage", "gate", "--from", str(detector / "run"), "--gates.targets", "try_best"]
    assert main([*words, "--routing", "[0, 2, 5]", "--out", str(tmp_path / "gated")]) == 0
    gated = load_detector(tmp_path / "gated")
    assert gated.spec.backbone.routing == ((0, 2, 5),)
    plain = load_detector(detector / "run").state_dict()
    same = {
        name: torch.equal(tensor, plain[name]) for name, tensor in gated.state_dict().items() if "slimming" not in name
    }
    assert all(same.values())


def test_gates_of_the_classification_run_are_kept(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = randomised("ds_mobilenet_v1_small", dtype=torch.float32)
    gated = with_fresh_router(net, replace(net.spec, router=RouterSpec("gate", "try_best")))
    dsnet.save(gated, tmp_path / "gated-backbone")
    words = ["--gates.router", "frozen", "--rule", "11point", "--backbone", str(tmp_path / "gated-backbone")]
    assert train_detector(detector, tmp_path / "kept", *words) == 0
    assert read(tmp_path / "kept" / "results" / "test.json", Evaluation).options["rule"] == "11point"
    theirs, mine = gated.state_dict(), load_detector(tmp_path / "kept").state_dict()
    gate = "segments.0.first.gate."
    same = [torch.equal(mine[f"backbone.{name}"], tensor) for name, tensor in theirs.items() if name.startswith(gate)]
    assert len(same) == 5
    assert all(same)
    assert load_detector(tmp_path / "kept").card.budgets
    assert main(["train", "--resume", str(tmp_path / "kept"), "--optim.lr", "1.0", "--task", "detection"]) == 2
    assert "--resume goes on with the run's own config" in capsys.readouterr().err


def test_eval_prints_and_exports(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["eval", str(run), "--split", "calibration", "--rule", "11point", "--json"]
    assert main([*words, "--export", str(tmp_path / "page")]) == 0
    result = read(tmp_path / "page.json", Evaluation)
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "page.json").read_text())
    assert result.options["rule"] == "11point"
    names = {"page.json", "page.md", "page.png", "page-gates.png", "page-examples.png"}
    assert {file.name for file in tmp_path.iterdir()} == names
    text = (tmp_path / "page.md").read_text()
    assert "![page-examples](page-examples.png)" in text
    assert Image.open(tmp_path / "page-examples.png").size[0] > 200
    for example in result.examples:
        assert len(example.objects) == 1
        assert example.path[0] in range(6)
        scores = [box.score or 0 for box in example.detections]
        assert scores, "where none is sure, the surest is kept"
        assert len(scores) == 1 or min(scores) >= 0.5
    with drawing():
        assert main(["eval", str(run), "--budgets", "0.9"]) == 0
    assert (run / "results" / "test-examples.png").stat().st_size > 1000
    assert "dynamic network: router gate" in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "with a confidence of 50% or more in test images" in page


def test_predict_draws_boxes(detector: Path, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = str(detector / "voc" / "JPEGImages" / "test000.jpg")
    words = ["predict", str(run), image, "--confidence", "0.05", "--draw", str(tmp_path), "--json"]
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    for thing in row["objects"]:
        assert thing["name"] in ("blue", "red")
        assert 0 <= thing["box"][0] <= thing["box"][2] <= 100
    (drawn,) = tmp_path.iterdir()
    assert Image.open(drawn).size == (100, 80)
    assert main(["predict", str(run), image, "--path", "3"]) == 0
    assert "objects of 50% confidence" in capsys.readouterr().out


@pytest.mark.parametrize("router", ["cheap_first", "exit_first"])
def test_a_detector_begins_with_any_classification_run(detector: Path, tmp_path: Path, router: str) -> None:
    """Whatever its router reads, which a detector does not have."""
    net = randomised("ds_mobilenet_v1_small", dtype=torch.float32)
    early = 8 if router == "exit_first" else None
    spec = RouterSpec(router, "correctness", 0, early=early)  # type: ignore[arg-type]
    dsnet.save(with_fresh_router(net, replace(net.spec, router=spec)), tmp_path / "backbone")
    config = replace(read_config(detector / "run" / "config.yaml"), backbone=str(tmp_path / "backbone"))
    found = new_detector(config, task.open_data(config))
    assert found.spec.backbone.router is None
    data = task.open_data(config)
    traces, _ = traces_of(task, eager(found.eval()), data, "calibration", replace(config, rule="11point"), routed=False)
    assert traces.scorer.rule == "11point"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backbone", "nowhere"], "nowhere is not a model folder"),
        (["--data.root", "nowhere"], "nowhere is not a folder"),
        (["--data.train", "[val]"], "val.txt does not exist; there are test, train"),
        (["--gates.router", "frozen"], "no trained gates to keep"),
        (["--gates.router", "frozen", "--routing", "[0,1]"], "routing is [0, 1], but gates.router frozen keeps"),
        (["--optim.batch_size", "64"], "larger than the 9 training images"),
        (["--stage", "gate"], "--stage gate needs --from RUN"),
        (["--from", "nowhere"], "--from RUN needs --stage gate"),
    ],
)
def test_mistakes_are_named(
    detector: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert train_detector(detector, tmp_path / "never", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_info_shows_what_each_part_costs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in told["widths"]] == [[width] for width in range(6)]
    assert all(sum(row["madds_parts"].values()) == row["madds"] for row in told["widths"])
    assert main(["info", str(run), "--path", "2"]) == 0
    assert "projections" in capsys.readouterr().out


def test_other_commands_know_what_a_detector_is_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recalibrate", str(run)]) == 2
    assert "holds a network for detection" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted((CONFIGS / "detection").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_in_the_repository_is_valid(file: Path) -> None:
    assert read_config(file).task == "detection"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_finds_the_same_objects(
    detector: Path, files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    images = [str(detector / "voc" / "JPEGImages" / f"test{number:03d}.jpg") for number in range(4)]
    for file, words in (("model.onnx", ["--budget", "0.9"]), ("model.onnx", []), ("path-3.onnx", ["--path", "3"])):
        wanted = printed(capsys, "predict", files[""], *images, "--confidence", "0.05", *words)
        found = printed(capsys, "predict", files[file], *images, "--confidence", "0.05", *words)
        assert [row["path"] for row in found] == [row["path"] for row in wanted]  # type: ignore[attr-defined]
        for mine, theirs in zip(found, wanted, strict=True):  # type: ignore[call-overload]
            assert mine["madds"] == theirs["madds"]
            assert len(mine["objects"]) == len(theirs["objects"])
            for a, b in zip(mine["objects"], theirs["objects"], strict=True):
                assert a["name"] == b["name"]
                assert a["confidence"] == pytest.approx(b["confidence"], abs=1e-4)
                assert a["box"] == pytest.approx(b["box"], abs=1e-2)
    assert any(row["objects"] for row in wanted)  # type: ignore[attr-defined]
    assert main(["predict", files["path-3.onnx"], *images, "--draw", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 4
    assert "holds a single path: path 3 runs" in capsys.readouterr().err
    assert main(["predict", files["path-3.onnx"], *images, "--budget", "0.5"]) == 2
    assert "holds a single path, so it has no budgets and no cap" in capsys.readouterr().err


def test_a_file_is_evaluated_like_its_run(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = printed(capsys, "eval", files[""])
    found = printed(capsys, "eval", files["model.onnx"])
    for mine, theirs in zip(found["rows"], wanted["rows"], strict=True):  # type: ignore[index]
        assert (mine["path"], mine["madds"]) == (theirs["path"], theirs["madds"])
        assert mine["score"]["mean"] == pytest.approx(theirs["score"]["mean"], abs=0.01)
    for mine, theirs in zip(found["dynamic"]["rows"], wanted["dynamic"]["rows"], strict=True):  # type: ignore[index]
        assert mine["madds"]["mean"] == pytest.approx(theirs["madds"]["mean"], rel=0.01)
        assert mine["score"]["mean"] == pytest.approx(theirs["score"]["mean"], abs=0.01)
    assert "onnxruntime" in found["made"]["runtime"]  # type: ignore[index]
    assert (Path(files[""]) / "results" / "test-model.json").exists()
    (row,) = printed(capsys, "eval", files["path-3.onnx"])["rows"]  # type: ignore[index]
    assert row["path"] == [3]
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(Path(files["model.onnx"]).read_bytes())
    assert main(["eval", str(moved)]) == 2
    assert "is not the run that" in capsys.readouterr().err
    assert main(["eval", str(moved), "--run", files[""]]) == 0
    assert main(["eval", files["path-3.onnx"], "--budgets", "0.5"]) == 2
    assert "holds a single path, so it has no budgets" in capsys.readouterr().err


def test_info_reads_files(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "info", files[""])
    assert all(printed(capsys, "info", files[name]) == told for name in ("model.onnx", "path-3.onnx"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bundle", "--budget", "0.5"], "a bundle takes its budget, cap, window and path when it runs"),
        (["--image_size", "96"], "image_size is 96 but this detector keeps its own, 64"),
        (["--path", "9"], "9"),
        (["--path", "2", "--budget", "0.5"], "leave --budget out"),
        (["--simple", "--path", "2"], "a file of one path has no input but the image"),
        (["--out", "net.pt"], "net.pt does not end in .onnx"),
    ],
)
def test_export_refuses_what_it_cannot_do(
    run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    before = sorted(run.rglob("*.onnx"))
    assert main(["export", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert sorted(run.rglob("*.onnx")) == before


@pytest.mark.slow
def test_bench_measures_widths_and_budgets(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", files[""], "--repeats", "2", "--batch_sizes", "1", "2", "--export", str(tmp_path / "page")]
    result = printed(capsys, *words)
    rows = result["widths"]["rows"]  # type: ignore[index]
    alone, batched = ({row["runtime"] for row in rows if row["batch"] == batch} for batch in (1, 2))
    assert alone == batched == {"static", "runner", "static onnx", "onnx"}
    table = count(load_detector(files[""]))
    for row in rows:
        assert row["madds"] == table.madds(row["path"])
        assert (row["ratio"] is None) == row["runtime"].startswith("static")
    routed = result["routed"]["rows"]  # type: ignore[index]
    assert [row["name"] for row in routed] == [files[""]] * 3
    assert all(row["ideal"] > 0 for row in routed)
    assert {file.name for file in tmp_path.iterdir()} == {
        "page.json",
        "page.md",
        *(f"page{number}.png" for number in ("", "-2", "-3", "-4")),
    }
    held = printed(capsys, "bench", files["model.onnx"], "--repeats", "2", "--paths", "all")
    assert [row["path"] for row in held["widths"]["rows"]] == [[width] for width in range(6)]  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runtimes", "slow"], "runtime 'slow' is unknown; choose from eager, runner"),
        (["--against", "ds_resnet50"], "has several widths; name a static network"),
        (["--routers", "nowhere"], "nowhere/config.yaml does not exist"),
        (["--image_size", "96"], "image_size is 96 but this detector keeps its own, 64"),
        (["--paths", "7"], "7"),
    ],
)
def test_bench_names_what_it_cannot_do(
    run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(run), "--repeats", "2", *words]) == 2
    assert message in capsys.readouterr().err


def commands_of_the_page() -> list[str]:
    text = (ROOT / "docs" / "detection.md").read_text()
    blocks = [block for kind, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL) if not kind]
    return [line.split(" #")[0] for block in blocks for line in block.splitlines() if line.startswith("dsnet")]


@pytest.mark.slow
def test_every_command_of_the_page_runs(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In small; the backbones, whose training has its own page, are there already."""
    backbones = [command for command in commands_of_the_page() if "imagenette" in command]
    commands = [command for command in commands_of_the_page() if command not in backbones]
    assert {command.split()[1] for command in commands} == {"train", "eval", "predict", "export", "info", "bench"}
    monkeypatch.chdir(tmp_path)
    for backbone in backbones:
        shutil.copytree(detector / "ds_mobilenet_v1_small", backbone.split("--out ")[1].strip())
    voc_folder(Path("data/BCCD"), {"train": 8, "val": 4, "test": 4})
    colours = ("red", "green", "blue", "cyan", "yellow", "magenta", "black")
    voc_folder(Path("data/VOCdevkit/VOC2007"), {"train": 16, "val": 7}, colours=colours)
    shutil.copytree("data/BCCD/JPEGImages", "photos")
    more = {"train": [*DETECTOR, "--optim.epochs", "1"], "bench": ["--repeats", "2", "--runtimes", "onnx"]}
    for command in commands:
        words = shlex.split(command)[1:]
        assert main([*words, *more.get(words[0], [])]) == 0, command
    shown, page = capsys.readouterr().out, Path("docs/results/voc_subset.md").read_text()
    for text in (shown, page):  # seven classes are too many for columns
        assert "Every class along every path" in text
        assert re.search(r"magenta[ |]+\d\.\d{3}[ |]+\d\.\d{3}", text)


def test_the_code_of_the_page_finds_what_dsnet_finds(
    detector: Path,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "detection.md").read_text(), flags=re.DOTALL)
    assert "dsnet" not in code
    photo = tmp_path / "photo.jpg"
    photo.write_bytes((detector / "voc" / "JPEGImages" / "test000.jpg").read_bytes())
    (tmp_path / "model.onnx").write_bytes(Path(files["model.onnx"]).read_bytes())
    monkeypatch.chdir(tmp_path)
    there: dict[str, object] = {}
    exec(code, there)
    (row,) = printed(capsys, "predict", "model.onnx", "photo.jpg", "--confidence", "0.05")  # type: ignore[misc]
    wanted = row["objects"][:12]  # a detector so little trained finds hundreds
    least = (wanted[-1]["confidence"] + row["objects"][12]["confidence"]) / 2
    mine = sorted(there["find"](photo, least), key=lambda thing: -thing[1])  # type: ignore[operator]
    assert len(mine) == 12
    for (name, score, box), thing in zip(mine, wanted, strict=True):
        assert name == thing["name"]
        assert score == pytest.approx(thing["confidence"], abs=1e-5)
        assert list(box) == pytest.approx(thing["box"], abs=1e-2)
