"""Names of devices: what they mean, and what is said where a device is missing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.errors import CheckpointError
from dsnet.export.onnx import export_onnx
from dsnet.models import create_model
from dsnet.models.devices import find_device, tuned, unused_gpus, words_for
from dsnet.runs.train import announce
from dsnet.runtime import engine
from dsnet.runtime.engine import device_name, onnx_runtime, open_session
from dsnet.training.state import random_state, set_random_state
from support.networks import ROUTERS, calibrated, images


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, **environment: str) -> None:
    """Let torch believe in some GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", "meta", "cuda:1234", "xla"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is unknown; choose auto, cpu, cuda, cuda:N"):
        device_name(name)
    with pytest.raises(ValueError, match="is unknown; choose auto"):
        find_device(name)


def test_without_a_gpu_auto_is_the_cpu_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert find_device() == find_device("cpu") == torch.device("cpu")
    assert words_for(find_device()) == ""
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=r"sees no GPU; use cpu"):
            find_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="Apple chip; use cpu"):
        find_device("mps")


def test_every_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    assert find_device() == torch.device("cuda", 0)
    assert find_device("cuda:3") == torch.device("cuda", 3)
    assert unused_gpus(find_device()) == 3
    with pytest.raises(ValueError, match=r"GPU 4 is asked for, but 4 GPUs are visible"):
        find_device("cuda:4")
    gpus(monkeypatch, 2, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert find_device() == find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cpu") == torch.device("cpu")
    assert unused_gpus(find_device()) == 0
    with pytest.raises(ValueError, match="is one GPU for 2 processes; use cuda"):
        find_device("cuda:1")
    gpus(monkeypatch, 1, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")  # a run that began with two is resumed with one
    with pytest.raises(ValueError, match=r"process 1 of this machine needs GPU 1, but 1 GPU is visible; .*to resume"):
        find_device()


@pytest.mark.parametrize(
    ("visible", "processes", "device", "left"),
    [(4, 1, "auto", 3), (4, 1, "cuda:2", 3), (8, 6, "cuda", 2), (4, 4, "auto", 0), (1, 1, "auto", 0), (4, 1, "cpu", 0)],
)
def test_a_run_says_which_gpus_it_does_not_use(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    visible: int,
    processes: int,
    device: str,
    left: int,
) -> None:
    """And how to use them. Someone who asked for the CPU knows."""
    gpus(monkeypatch, visible, LOCAL_WORLD_SIZE=str(processes), LOCAL_RANK="0")
    net = create_model("ds_mobilenet_v1_tiny")
    announce(net, open_dataset(DataConfig()), Path("runs/a"), find_device(device))
    first, *more = capsys.readouterr().out.splitlines()
    assert f"{find_device(device)}, writes to" in first
    said = f"torchrun --nproc_per_node {visible} -m dsnet train uses all of them"
    assert more == ([f"{left} of {visible} GPUs are not used; {said}"] if left else [])


def test_an_apple_chip_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("mps") == torch.device("mps")
    assert find_device("auto") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one device for 2 processes; use cpu, or one process"):
        find_device("mps")


def test_a_state_of_more_gpus_is_resumed_on_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of older versions hold the generators of all GPUs that were visible."""
    state, given = random_state(), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    set_random_state({**state, "cuda": ["first", "second", "third"]})
    assert given == ["first"]


def test_cudnn_tries_its_algorithms_in_training_only() -> None:
    before = torch.backends.cudnn.benchmark
    with tuned(torch.device("cuda", 0)):
        assert torch.backends.cudnn.benchmark
        with tuned(torch.device("cpu")):
            assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return export_onnx(calibrated("ds_mobilenet_v1_tiny", ROUTERS[0]), tmp_path / "model.onnx", image_size=16)


def test_a_file_falls_back_to_the_cpu_with_a_note(file: Path) -> None:
    for device, runtime, said in (("cuda", "onnx", "CUDA"), ("mps", None, "CoreML"), ("cpu", "tensorrt", "Tensorrt")):
        with pytest.warns(UserWarning, match=f"installed without {said}, so the CPU runs the network"):
            runner = dsnet.open_runner(file, runtime=runtime, device=device, threads=1)
        assert runner.runtime.startswith(f"onnxruntime {ort.__version__}, ")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dsnet.open_runner(file, device="auto", threads=1).device is None


def test_installed_providers_are_used_in_their_order(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    held = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(engine.ort, "get_available_providers", lambda: held)
    opened: list[Any] = []
    monkeypatch.setattr(engine, "open_session", lambda file, threads=0, *, providers: opened.append(providers))
    for device, provider, name in (
        ("cuda", None, "CUDA"),
        ("auto", None, "CUDA"),
        ("cuda:1", None, "CUDA 1"),
        ("auto", "tensorrt", "Tensorrt"),
    ):
        made = onnx_runtime(device, provider=provider)
        assert made.name == f"onnxruntime {ort.__version__} {name}"
        made.open(file, 1)
    cpu = ("CPUExecutionProvider", {})
    assert opened[0] == opened[1] == [("CUDAExecutionProvider", {}), cpu]
    assert opened[2] == [("CUDAExecutionProvider", {"device_id": "1"}), cpu]
    assert opened[3] == [("TensorrtExecutionProvider", {}), ("CUDAExecutionProvider", {}), cpu]
    assert onnx_runtime("cpu").name == f"onnxruntime {ort.__version__}"


def test_a_provider_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    real = ort.InferenceSession
    cpu = ("CPUExecutionProvider", {})
    monkeypatch.setattr(
        engine.ort, "InferenceSession", lambda path, options, *, providers, **more: real(path, options, providers=[cpu])
    )
    with pytest.warns(UserWarning, match="CUDAExecutionProvider cannot be loaded, so the CPU runs"):
        open_session(file, 1, providers=[("CUDAExecutionProvider", {}), cpu])


def test_a_provider_that_cannot_run_a_file_is_told(monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path) -> None:
    """The CPU runs it instead. What nothing can run is an error."""
    real = ort.InferenceSession

    def opened(path: str, options: Any, *, providers: Any, **more: Any) -> Any:
        if providers[0][0] != engine.CPU:
            raise RuntimeError("TopK is not supported\nand more")
        return real(path, options, providers=providers, **more)

    monkeypatch.setattr(engine.ort, "InferenceSession", opened)
    providers = [("OpenVINOExecutionProvider", {}), (engine.CPU, {})]
    with pytest.warns(UserWarning, match=r"cannot run .*model.onnx, so the CPU does \(TopK is not supported\)$"):
        assert open_session(file, 1, providers=providers).get_providers() == [engine.CPU]
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read as an ONNX file"):
        open_session(damaged, 1, providers=providers)


def test_openvino_and_networks_refuse_other_devices(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(ValueError, match="OpenVINO runs on the CPU here; leave the device cuda out"):
        dsnet.open_runner(file, runtime="openvino", device="cuda")


def test_commands_say_what_is_wrong_with_a_device(
    tmp_path: Path, file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 0)
    dsnet.save(calibrated("ds_mobilenet_v1_tiny", ROUTERS[0]), tmp_path / "net")
    picture = tmp_path / "a.png"
    from PIL import Image

    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(picture)
    for words in (
        ["predict", str(tmp_path / "net"), str(picture), "--device", "cuda"],
        ["train", "--out", str(tmp_path / "run"), "--device", "cuda:0"],
        ["bench", "ds_mobilenet_v1_tiny", "--device", "cuda"],
        ["predict", str(file), str(picture), "--device", "gpu"],
    ):
        assert main(words) == 2
        said = capfd.readouterr().err
        assert said.count("\n") == 1
        assert "use cpu" in said or "is unknown; choose" in said or "time the file there" in said
    assert not (tmp_path / "run").exists()


def test_a_runner_answers_where_the_images_are(tmp_path: Path) -> None:
    """The network stays on its device; the CPU stands for both here, `test_pretend_device` for two."""
    net = calibrated("ds_mobilenet_v1_tiny", ROUTERS[0])
    x = images(net, 3)
    runner = dsnet.DynamicRunner(net)
    assert runner.device == torch.device("cpu")
    assert runner(x, path=(1,)).logits.device == x.device
    assert isinstance(runner(x.numpy(), path=(1,)).logits, np.ndarray)


@pytest.mark.parametrize(("allowed", "threads", "taken"), [(2, 0, 2), (8, 0, 0), (2, 1, 1)])
def test_a_session_keeps_to_the_cores_of_its_process(
    file: Path, allowed: int, threads: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime counts all cores of the machine. With all of them allowed, it chooses."""
    monkeypatch.setattr(engine, "cores", lambda: allowed)
    monkeypatch.setattr(engine.os, "cpu_count", lambda: 8)
    session = open_session(file, threads)
    assert session.get_session_options().intra_op_num_threads == taken
