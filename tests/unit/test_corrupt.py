"""Corrupted copies of a split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsnet.data.augment import normalise, to_float, to_pixels
from dsnet.data.config import DataConfig
from dsnet.data.corrupt import CORRUPTIONS, Corruption, corrupted
from dsnet.data.labelled import open_dataset
from support.folders import make_folder


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda one: one.name)
def test_corruptions_depend_on_the_image_alone(corruption: Corruption, tmp_path: Path) -> None:
    """The same image is corrupted in the same way in any batch; another seed makes other noise."""
    data = open_dataset(DataConfig(dataset="folder", root=str(make_folder(tmp_path, count=4)), image_size=32))
    changed = corrupted(data, "train", corruption)
    clean, whole = data.train.load(data.train.ids), changed.train.load(data.train.ids)
    last = changed.train.load(data.train.ids[-1:])
    assert torch.equal(whole.images[-1:], last.images)
    assert torch.equal(whole.labels, clean.labels)
    assert torch.equal(whole.ids, clean.ids)
    assert not torch.equal(whole.images, clean.images)
    assert changed.test is data.test
    assert changed.fingerprint == data.fingerprint
    other = corrupted(data, "train", corruption, seed=1).train.load(data.train.ids)
    assert torch.equal(other.images, whole.images) == (corruption.kind != "noise")


def test_stronger_corruptions_change_more() -> None:
    data = open_dataset(DataConfig())  # grey images
    ids = data.test.ids[:20]
    clean = data.test.load(ids).images
    for weak, strong in zip(CORRUPTIONS[::2], CORRUPTIONS[1::2], strict=True):
        assert weak.kind == strong.kind
        changes = [(corrupted(data, "test", one).test.load(ids).images - clean).abs().mean() for one in (weak, strong)]
        assert 0 < changes[0] < changes[1]


def test_pixels_come_back_from_normalised_images() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, -1, -1)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    assert torch.equal(to_pixels(normalise(to_float(pixels), mean, std), mean, std), pixels)
