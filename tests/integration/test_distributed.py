"""Two processes that talk by gloo train like one."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.results import as_json
from dsnet.tasks import load as load_detector
from support.counted import Counted
from support.folders import voc_folder
from support.networks import randomised
from support.ranks import STEPS, one_step, torchrun
from support.runs import SHORT, made_once

WORKER = ["-m", "support.ranks"]
Two = dict[str, dict[str, torch.Tensor]]


DIGITS = [*SHORT, "--optim.epochs", "2", "--optim.batch_size", "128"]
DETECTOR = "--task detection --projection 16 --pyramid 16 --data.image_size 64 --gates.targets try_best --threads 1"
for part in ("optim", "gates_optim"):
    DETECTOR += f" --{part}.epochs 1 --{part}.batch_size 4 --{part}.warmup_epochs 0"


def run_two(folder: Path) -> None:
    """Steps and trainings of two ranks, which start once for all of them."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    dsnet.save(randomised("ds_mobilenet_v1_small", dtype=torch.float32), folder / "backbone")
    voc_folder(folder / "voc", {"train": 20, "test": 4})
    places = ["--backbone", str(folder / "backbone"), "--data.root", str(folder / "voc")]
    words = {"digits": DIGITS, "detector": [*DETECTOR.split(), *places]}
    done = torchrun(*WORKER, "all", str(runs), json.dumps(words))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def place(shared: Path) -> Path:
    """What two ranks leave, beside a backbone and images with objects."""
    return made_once(shared / "ranks", run_two) / "runs"


@pytest.fixture(scope="module")
def two(place: Path) -> Two:
    """What two ranks find, by kind of step."""
    return {what: torch.load(place / f"{what}.pt", weights_only=True) for what in STEPS}


def test_group_norm_gradients_of_two_halves_equal_those_of_the_whole(two: Two, place: Path) -> None:
    one = one_step("group", place)
    assert one.keys() == two["group"].keys()
    assert torch.allclose(one["losses"], two["group"]["losses"], rtol=1e-9)
    for name in one:
        assert torch.allclose(one[name], two["group"][name], rtol=1e-7, atol=1e-10), name


def test_a_bypassed_wrapper_is_noticed(two: Two, place: Path) -> None:
    """The same comparison fails when the stage is called without DistributedDataParallel."""
    one = one_step("bypass", place)
    gradients = [name for name in one if name.startswith("grad.")]
    assert any(not torch.allclose(one[name], two["bypass"][name], rtol=1e-3, atol=1e-6) for name in gradients)


def test_batch_norm_gradients_are_the_mean_of_both_halves_and_statistics_are_averaged(two: Two, place: Path) -> None:
    first, second = (one_step("batch", place, half) for half in (0, 1))
    checked = [name for name in two["batch"] if name.startswith(("grad.", "stat."))]
    assert {name.split(".")[0] for name in checked} == {"grad", "stat"}
    for name in checked:
        mean = (first[name] + second[name]) / 2
        assert torch.allclose(two["batch"][name], mean, rtol=1e-7, atol=1e-10), name


def test_a_detectors_gradients_are_the_mean_of_both_halves(two: Two, place: Path) -> None:
    first, second = (one_step("boxes", place, half) for half in (0, 1))
    gradients = [name for name in two["boxes"] if name.startswith("grad.")]
    assert any("neck" in name for name in gradients)
    assert any("backbone" in name for name in gradients)
    assert not torch.allclose(first["grad.neck.norm.layer.weight"], second["grad.neck.norm.layer.weight"], rtol=1e-3)
    for name in gradients:
        assert torch.allclose(two["boxes"][name], (first[name] + second[name]) / 2, rtol=1e-7, atol=1e-10), name


def test_nan_in_one_rank_stops_both(two: Two, place: Path) -> None:
    for rank in (0, 1):
        text = (place / f"nan{rank}.txt").read_text()
        assert "loss 'widest' is not finite at step 1" in text
        assert "untouched: True" in text


def test_processes_agree_on_the_folder_and_the_data(two: Two, place: Path) -> None:
    a, b = (json.loads((place / f"agreed{rank}.json").read_text()) for rank in (0, 1))
    assert {**a, "other": b["other"]} == b
    assert a["same"] == "None"
    assert re.match(r"process 1 on .* does not see the files that process 0 on .* writes to .*own\d;", a["other"])
    assert "some processes found a run in" in a["some"]
    assert a["missing"].endswith("none is not a folder; give the folder that holds one folder per class")
    assert a["opened"] == open_dataset(DataConfig()).fingerprint
    assert not any((place / "both").iterdir())


def test_two_ranks_train_evaluate_exactly_and_only_one_writes(place: Path) -> None:
    printed = [(place / f"digits{rank}.out").read_text() for rank in (0, 1)]
    assert [text.count("epoch 2/2") for text in printed] == [1, 0]
    lines = [json.loads(line) for line in (place / "digits" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    correct = lines[1]["calibration/widest"] * 143  # every one of the 143 images counted once
    assert abs(correct - round(correct)) < 1e-6
    assert json.loads((place / "digits" / "results" / "test.json").read_text())["images"] == 359


@pytest.mark.parametrize("kind", ["digits", "detector"])
def test_two_ranks_evaluate_as_one_process_does_to_the_digit(place: Path, kind: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = as_json(dsnet.evaluate(place / kind))
    finally:
        torch.set_num_threads(before)
    shared = json.loads((place / kind / "results" / "test.json").read_text())
    assert shared["rows"]
    for key in ("rows", "dynamic", "examples", "answers", "images", "skipped"):
        assert json.loads(json.dumps(alone[key])) == shared[key], key


@pytest.mark.slow
def test_two_ranks_recalibrate_as_one_process_does_to_the_bit(place: Path, tmp_path: Path) -> None:
    """Statistics and budgets, by the command: the run of two ranks is what one process makes of it again."""
    copies = [shutil.copytree(place / "digits", tmp_path / name) for name in ("one", "two")]
    assert main(["recalibrate", str(copies[0]), "--images", "1024"]) == 0
    done = torchrun("-m", "dsnet", "recalibrate", str(copies[1]), "--images", "1024")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("averaged over 4 batches") == 1
    for name in ("model.safetensors", "model.json"):
        assert (copies[0] / name).read_bytes() == (copies[1] / name).read_bytes(), name
    assert (copies[0] / "model.safetensors").read_bytes() != (place / "digits" / "model.safetensors").read_bytes()


def test_two_ranks_train_a_detector_and_its_gate(place: Path) -> None:
    printed = [(place / f"detector{rank}.out").read_text() for rank in (0, 1)]
    assert [text.count("epoch 1/1") for text in printed] == [2, 0]  # one line for each stage, not for each process
    detector = load_detector(place / "detector")
    assert detector.spec.backbone.router is not None
    assert detector.card.budgets
    result = json.loads((place / "detector" / "results" / "test.json").read_text())
    assert result["images"] == 4
    medians = [(place / f"median{rank}.txt").read_text() for rank in (0, 1)]
    assert medians[0] == medians[1], "what is hard must not depend on the process that saw the image"


DYING = [*DIGITS, "--save_steps", "3"]


def test_a_killed_rank_ends_the_job_with_a_clear_error(tmp_path: Path) -> None:
    for attempt in range(4):  # torchrun may end the survivor before it has said what it lost
        run = tmp_path / str(attempt)
        done = torchrun(*WORKER, "die", str(run), *DYING, DSNET_TEST_STEP="4")
        assert done.returncode != 0
        assert not (run / "model.json").exists()
        assert (run / "state" / "last.pt").exists()
        if "process 0 of 2 lost touch with another one" in done.stderr:
            return
    raise AssertionError(done.stderr[-3000:])


@pytest.mark.slow
def test_a_restart_by_torchrun_resumes(tmp_path: Path, counted: Counted) -> None:
    """One restart is enough: what the killed processes left in torchrun's store does not mislead the next ones."""
    words = [*DYING, "--timeout", "0.5"]
    plain = torchrun("-m", "dsnet", "train", "--out", str(tmp_path / "plain"), *words)
    assert plain.returncode == 0, plain.stderr[-3000:]
    expected, broken = (tmp_path / "plain" / "model.safetensors").read_bytes(), []
    for fatal in range(3, 13):  # every trial dies at another step; states are saved every 3 steps and after an epoch
        run = tmp_path / str(fatal)
        done = torchrun(*WORKER, "die", str(run), *words, restarts=1, DSNET_TEST_STEP=str(fatal))
        resumed = re.search(r"resumed at step (\d+)", done.stdout)
        whole = done.returncode == 0 and (run / "model.safetensors").read_bytes() == expected
        if not (whole and resumed and fatal - 3 <= int(resumed[1]) <= fatal):
            broken.append((fatal, done.returncode, resumed, re.findall(r"dsnet train: error: .*", done.stderr)))
    law = "torchrun restarts a job of two processes if one is killed, and its weights are those of an unbroken one"
    counted(law, 10, broken)


@pytest.mark.slow
def test_a_hung_rank_ends_the_job_after_the_time_out(tmp_path: Path, counted: Counted) -> None:
    broken, waits = [], []
    for fatal in (0, 1, 3, 4, 7):
        run = tmp_path / str(fatal)
        done = torchrun(*WORKER, "hang", str(run), *DYING, "--timeout", "0.25", DSNET_TEST_STEP=str(fatal))
        ended = time.time()
        hung = re.search(r"signal at ([\d.]+)", done.stdout)
        waits.append(ended - float(hung[1]) if hung else float("inf"))
        said = "process 0 of 2 lost touch with another one, which died or hung" in done.stderr
        # torchrun gives the hung process half a minute to end by itself.
        if done.returncode == 0 or not said or not 15 <= waits[-1] < 90 or (run / "model.json").exists():
            broken.append((fatal, waits[-1], done.stderr[-500:]))
    law = "A process that hangs ends the job: the others stop after the time-out, here 15 s, and name the run to resume"
    counted(law, 5, broken, seconds_at_most=round(max(waits)))


@pytest.mark.slow
def test_two_ranks_run_an_experiment(tmp_path: Path) -> None:
    """A grid under torchrun: every run is trained by both, one of them writes the tables."""
    words = ["temperature", "--scale", "smoke", "--out", str(tmp_path)]
    done = torchrun("-m", "dsnet", "reproduce", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Distillation temperature on DS-MBNet") == 1
    assert done.stderr.count("[2/2]") == 1
    result = json.loads((tmp_path / "temperature.json").read_text())
    assert all("not run" not in row for row in result["tables"][0]["rows"])
    refused = torchrun("-m", "dsnet", "reproduce", *words, "--workers", "2")
    assert refused.returncode != 0
    assert "1 under torchrun" in refused.stderr
