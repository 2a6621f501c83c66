"""The run folder: what tells a reader, or a resumed run, what a run is."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from dsnet.checkpoint import MODEL
from dsnet.config import CONFIG, TrainConfig
from dsnet.data.dataset import Data as Dataset
from dsnet.errors import CheckpointError
from dsnet.files import write_whole
from dsnet.version import __version__, commit

SPLITS = "splits.json"
BENCH = "results/bench.json"
GATE = "gate"  # below a run's folder: training state and metrics of stage II


def prepare_folder(folder: Path, config: TrainConfig, data: Dataset) -> None:
    """Write config, splits and versions into a new folder."""
    if (folder / "state" / "last.pt").exists() or (folder / MODEL).exists():
        raise CheckpointError(
            f"{folder} already holds a run; continue it with --resume {folder}, or choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    versions = {
        "dsnet": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    splits = {name: getattr(data, name).ids.tolist() for name in ("calibration", "test")}
    write_whole(folder / SPLITS, json.dumps({"fingerprint": data.fingerprint, **splits}).encode())
    write_whole(folder / "versions.json", json.dumps({**versions, "command": sys.argv}, indent=1).encode())
    write_whole(folder / CONFIG, yaml.safe_dump(to_plain(config.to_dict()), sort_keys=False).encode())


def check_data(folder: Path, data: Dataset) -> None:
    """Refuse data that changed since the run began: test or calibration images might have become training images."""
    try:
        known = json.loads((folder / SPLITS).read_text())["fingerprint"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / SPLITS} cannot be read ({error}); it tells how the data was split") from error
    if known != data.fingerprint:
        raise CheckpointError(
            f"the data is not the one that the run in {folder} began with: images, labels or classes were added, "
            f"removed or renamed, so its splits would mix; restore the data, or train anew"
        )


def to_plain(value: Any) -> Any:
    """Tuples as lists, so that YAML stays plain."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value
