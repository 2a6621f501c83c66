"""Detectors on disk, in the same two files as classification networks."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dsnet.checkpoint import MODEL, WEIGHTS, card_in, check_tensors, read_description, read_model, task_in, write_model
from dsnet.errors import CheckpointError
from dsnet.runtime import is_artefact
from dsnet.runtime.onnx.runner import task_of
from dsnet.tasks.detection.detector import Detector
from dsnet.tasks.detection.onnx import OnnxDetector
from dsnet.tasks.detection.spec import TASK, DetectorSpec


def save_detector(detector: Detector, folder: str | os.PathLike[str]) -> Path:
    """Write the detector with its spec and card. A crash at any moment leaves the old model or the new one."""
    return write_model(folder, detector.state_dict(), detector.spec, detector.card)


def load_detector(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Detector:
    """The saved detector in eval mode, bit for bit."""
    folder = Path(folder)
    content, tensors = read_model(folder)
    if task_in(content) != TASK:
        raise CheckpointError(f"{folder} holds a network for {task_in(content)}, not for detection; use dsnet.load")
    try:
        spec = DetectorSpec.from_dict(content["spec"])
        with torch.device("meta"):  # costs nothing, whatever sizes a spec asks for
            expected = Detector(spec).state_dict()
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"{folder / MODEL} describes a detector that cannot be built ({error})") from error
    check_tensors(folder / WEIGHTS, tensors, expected)
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; loading must not move the generator
        detector = Detector(spec)
    detector.card = card_in(folder, content)
    detector.load_state_dict(tensors, assign=True)
    return detector.to(device).eval()


def open_detector(where: str | os.PathLike[str]) -> Detector | OnnxDetector:
    """The detector of a run folder or of an ONNX file."""
    place = Path(where)
    return OnnxDetector(place) if is_artefact(place) else load_detector(place)


def is_detector(where: str | os.PathLike[str]) -> bool:
    """Whether a folder or an ONNX file holds a detector."""
    place = Path(where)
    if place.suffix == ".onnx" and place.is_file():
        return task_of(place) == TASK
    return (place / MODEL).is_file() and task_in(read_description(place)) == TASK
