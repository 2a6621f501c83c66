"""Detectors on disk, in the same two files as classification networks."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dsnet.checkpoint import MODEL, read_description, task_in
from dsnet.runtime import is_artefact
from dsnet.runtime.onnx.runner import task_of
from dsnet.tasks import load, save
from dsnet.tasks.detection.detector import Detector
from dsnet.tasks.detection.onnx import OnnxDetector
from dsnet.tasks.detection.spec import TASK


def save_detector(detector: Detector, folder: str | os.PathLike[str]) -> Path:
    """Write the detector with its spec and card. A crash at any moment leaves the old model or the new one."""
    return save(detector, folder)


def load_detector(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Detector:
    """The saved detector in eval mode, bit for bit."""
    detector: Detector = load(folder, TASK, device=device)
    return detector


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
