"""How images are set aside for calibration and test, and the splits of a run on disk.

With the splits on disk, a resumed run or an evaluation checks that the data is still the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsnet.data.dataset import Data
from dsnet.errors import CheckpointError, DataError
from dsnet.files import write_whole

SPLITS = "splits.json"
TRUSTED = 100  # calibration images; fewer leave an uncertainty of more than 6 points at an accuracy of 90 %


def few_to_calibrate(count: int, images: int, share: float | None, *, key: str) -> list[str]:
    """A warning if there are too few calibration images to trust.

    images: Number of images that calibration images are taken from. share: Share of them that is taken, which the
    option `key` sets, or None where the data brings its own calibration images.
    """
    if count >= TRUSTED:
        return []
    error = 100 * 1.96 * (0.9 * 0.1 / max(1, count)) ** 0.5
    enough = math.ceil(100 * TRUSTED / images) / 100
    remedy = "add images to it" if share is None else "add training images"
    if share is not None and enough <= 0.5:
        remedy = f"set --{key} {max(enough, share):g}, or {remedy}"
    return [
        f"only {count} images calibrate: they choose the best epoch and the budgets, and an accuracy of 90 % on them "
        f"is uncertain by {error:.0f} points; {remedy}"
    ]


def stratified(
    labels: Tensor | None, ids: Tensor, share: float, *, seed: int, names: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """Set aside a share of every class, with at least one sample of each.

    labels: Classes of all samples, or None where images have no single class. names: Names of the classes.
    Returns the remaining ids and those set aside, both in rising order.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = {"the training split": ids}
    if labels is not None:
        present, counts = labels[ids].unique(return_counts=True)
        sorted_ids = ids[labels[ids].argsort(stable=True)]
        groups = {
            f"the class {names[label] if names else label}": group
            for label, group in zip(present.tolist(), sorted_ids.split(counts.tolist()), strict=True)
        }
    taken = []
    for name, group in groups.items():
        count = max(1, round(len(group) * share))
        if count >= len(group):
            raise DataError(
                f"{name} has only {len(group)} image{'s'[: len(group) != 1]} to split; at least 3 are needed for "
                f"training, calibration and test"
            )
        taken.append(group[torch.randperm(len(group), generator=generator)[:count]])
    aside = torch.cat(taken).sort().values
    return ids[~torch.isin(ids, aside)], aside


def by_group(labels: Tensor, groups: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """`stratified` for images that come in groups, each of one class. The images of a group stay together."""
    first = torch.from_numpy(np.unique(groups.numpy(), return_index=True)[1])
    _, taken = stratified(labels, first, share, seed=seed)
    aside = torch.isin(groups, groups[taken])
    return (~aside).nonzero().flatten(), aside.nonzero().flatten()


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
