"""Answers as rows of a table for the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence

from dsnet.prediction.answers import Answer, ImageDetections
from dsnet.space import WidthPath

ROOM = 16  # columns that the name of an image gets at least
BORDERS = 3  # columns that a terminal table takes for each of its columns beside the text


def as_csv(answers: Sequence[Answer], name: Callable[[WidthPath], str], *, boxes: bool, top: int = 0) -> str:
    """A CSV file with a header: one row for each image, or for each detected object of a detector.

    name: Names a path. boxes: Whether the answers are those of a detector. top: Number of the most probable classes in
    each row.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header(boxes, top))
    for answer in answers:
        writer.writerows(records(answer, name(answer.path), top))
    return text.getvalue()


def header(boxes: bool, top: int) -> list[str]:
    others = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("label", "confidence")]
    box = ["left", "top", "right", "bottom"] if boxes else []
    return ["file", "label", "confidence", "path", "madds", *box, *others]


def records(answer: Answer, path: str, top: int) -> Iterator[list[object]]:
    """The rows of one image."""
    taken = [path, answer.madds]
    if isinstance(answer, ImageDetections):
        for item in answer.objects:
            yield [answer.file, item.name, rounded(item.confidence), *taken, *(round(edge, 2) for edge in item.box)]
        return
    others = [value for one in answer.top[1:top] for value in (one.name, rounded(one.confidence))]
    yield [answer.file, answer.name, rounded(answer.confidence), *taken, *others]


def rounded(probability: float) -> float:
    return round(probability, 6)


def with_short_names(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The rows of a table with the names in their first column shortened, so that the table fits into `width`."""
    names = [column.removeprefix("<") for column in columns]
    cells = [list(column) for column in zip(names, *rows, strict=True)]
    others = sum(max(map(len, column)) + BORDERS for column in cells[1:])
    room = max(ROOM, width - others - BORDERS - 1)
    return [[shortened(row[0], room), *row[1:]] for row in rows]


def shortened(name: str, room: int) -> str:
    """A long name with its middle left out. The end is kept longer than the beginning: it tells files apart."""
    if len(name) <= room:
        return name
    end = (room - 1) * 2 // 3
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"
