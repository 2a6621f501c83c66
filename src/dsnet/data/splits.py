"""The splits of a run on disk. With them a resumed run or an evaluation checks that the data is still the same."""

from __future__ import annotations

import json
from pathlib import Path

from dsnet.data.dataset import Data
from dsnet.errors import CheckpointError
from dsnet.files import write_whole

SPLITS = "splits.json"


def write_splits(folder: Path, data: Data) -> None:
    splits = {name: getattr(data, name).ids.tolist() for name in ("calibration", "test")}
    write_whole(folder / SPLITS, json.dumps({"fingerprint": data.fingerprint, **splits}).encode())


def check_data(folder: Path, data: Data) -> None:
    """Refuse data that changed since the run began, because images may have moved between training and test."""
    try:
        fingerprint = json.loads((folder / SPLITS).read_text())["fingerprint"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / SPLITS} cannot be read ({error}); it tells how the data was split") from error
    if fingerprint != data.fingerprint:
        raise CheckpointError(
            f"the data is not the one that the run in {folder} began with: images, labels or classes were added, "
            f"removed or renamed, so its splits would mix; restore the data, or train anew"
        )
