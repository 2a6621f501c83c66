"""Answers as JSON, CSV and rows of a table."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from dsnet.models import create_model
from dsnet.prediction.answers import Detection, ImageDetections, Input, Prediction, Ranked, answers_of, plain
from dsnet.prediction.output import as_csv, shortened, with_short_names
from dsnet.space import path_name

NAMES = ("a cat, asleep", 'a "dog"', "emu\nwith a line break")


def classified(logits: list[list[float]], top: int = 0) -> list[Prediction]:
    manifest = replace(create_model("ds_mobilenet_v1_tiny", num_classes=3).manifest(), classes=NAMES)
    images = [Input(f"photo {number}, é.jpg", (4, 4), np.zeros((3, 4, 4))) for number in range(len(logits))]
    paths, madds = np.full((len(logits), 1), 2), np.full(len(logits), 1000)
    found = answers_of(manifest, {"logits": np.array(logits, np.float32)}, images, paths, madds, top=top)
    return [one for one in found if isinstance(one, Prediction)]


def table(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_the_most_probable_classes_are_ranked() -> None:
    first, second = classified([[0.0, 2.0, 1.0], [5.0, 5.0, 0.0]], top=3)
    assert [one.label for one in first.top] == [1, 2, 0]
    assert [one.label for one in second.top] == [0, 1, 2]  # equal: the first class
    assert first.top[0] == Ranked(first.label, first.name, first.confidence)
    assert sum(one.confidence for one in first.top) == pytest.approx(1.0)
    assert first.words == ['a "dog"', "66.5%", "emu\nwith a line break 24.5%, a cat, asleep 9.0%"]
    (short,) = classified([[0.0, 2.0, 1.0]], top=1)
    assert short.words == ['a "dog"', "66.5%"]


def test_top_changes_nothing_else() -> None:
    logits = [[0.0, 2.0, 1.0]]
    (plain_answer,), (ranked,) = classified(logits), classified(logits, top=2)
    assert replace(ranked, top=()) == plain_answer
    assert "top" not in plain(plain_answer)
    assert [one["label"] for one in plain(ranked)["top"]] == [1, 2]


def test_csv_holds_any_name() -> None:
    answers = classified([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]], top=2)
    head, *rows = table(as_csv(answers, path_name, boxes=False, top=2))
    assert head == ["file", "label", "confidence", "path", "madds", "label_2", "confidence_2"]
    assert [row[1] for row in rows] == list(NAMES)
    assert [row[0] for row in rows] == [one.file for one in answers]
    assert [float(row[2]) for row in rows] == pytest.approx([one.confidence for one in answers], abs=1e-6)
    assert {len(row) for row in rows} == {len(head)}
    assert table(as_csv([], path_name, boxes=False)) == [["file", "label", "confidence", "path", "madds"]]


def test_csv_of_a_detector_has_a_row_for_each_object() -> None:
    objects = tuple(Detection(k, name, 0.9 - k / 10, (1.5, 2.0, 30.25, 40.0)) for k, name in enumerate(NAMES))
    answers = [ImageDetections("a.jpg", objects, (0, 1, 2), 7), ImageDetections("empty.jpg", (), (0, 0, 0), 5)]
    head, *rows = table(as_csv(answers, path_name, boxes=True))
    assert head == ["file", "label", "confidence", "path", "madds", "left", "top", "right", "bottom"]
    assert rows == [
        ["a.jpg", name, str(c), "0,1,2", "7", "1.5", "2.0", "30.25", "40.0"]
        for name, c in zip(NAMES, (0.9, 0.8, 0.7), strict=True)
    ]


def test_long_names_are_shortened_in_the_middle() -> None:
    name = "/home/somebody/photographs/2026/august/beach/IMG_0001.jpg"
    assert shortened(name, len(name)) == name
    short = shortened(name, 30)
    assert len(short) == 30
    assert short.startswith("/home")
    assert short.endswith("IMG_0001.jpg")
    columns, row = ["<image", "<class", "confidence", "MAdds"], [name, "cat", "99.0%", "1.11M"]
    (fitted,) = with_short_names(columns, [row], 60)
    assert fitted[1:] == row[1:]
    width = (
        sum(max(len(cell), len(column.removeprefix("<"))) + 3 for cell, column in zip(fitted, columns, strict=True)) + 1
    )
    assert width == 60
