"""Contact sheets: pictures with captions, and detections with their boxes, drawn by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from dsnet.prediction.answers import CONFIDENCE
from dsnet.results import Box, Evaluation, Example

SCALE = 2  # pixels of a sheet per pixel of the page
COLUMNS = 6
PALETTE = """
1f77b4 ff7f0e 2ca02c d62728 9467bd 8c564b e377c2 7f7f7f bcbd22 17becf
aec7e8 ffbb78 98df8a ff9896 c5b0d5 c49c94 f7b6d2 c7c7c7 dbdb8d 9edae5
"""
COLOURS = tuple(f"#{colour}" for colour in PALETTE.split())
INK, SOFT = "#1d2733", "#5c6b7a"
Captioned = tuple[Image.Image, Sequence[str]]


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(SCALE * size)


def contact_sheet(groups: Sequence[tuple[str, Sequence[Captioned]]], *, title: str, side: int = 96) -> bytes:
    """Rows of pictures with captions as PNG, a heading per group."""
    lines = max((len(words) for _, pictures in groups for _, words in pictures), default=0)
    cell, row = side + 12, side + 10 + 13 * lines
    rows = [-(-len(pictures) // COLUMNS) for _, pictures in groups]
    heads = [24 if name else 0 for name, _ in groups]
    height = 34 + sum(head + row * count for head, count in zip(heads, rows, strict=True))
    sheet, pen = paper(COLUMNS * cell + 12, height)
    write(pen, 12, 8, title, 13)
    y = 34
    for (name, pictures), head, count in zip(groups, heads, rows, strict=True):
        write(pen, 12, y, name, 12)
        for number, (picture, words) in enumerate(pictures):
            x, top = 12 + number % COLUMNS * cell, y + head + number // COLUMNS * row
            place(sheet, picture, x, top, side, side)
            for place_of, text in enumerate(words):
                write(pen, x, top + side + 3 + 13 * place_of, text, 10, SOFT if place_of else INK, room=cell)
        y += head + row * count
    return png(sheet)


def detection_sheet(result: Evaluation, images: Sequence[Image.Image], file: Path) -> Path:
    """Draw the example images with their detections, and with the annotated objects as dashed boxes."""
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(result.classes)}
    columns = min(3, max(1, len(images)))
    wide, high, below = 250, 190, 24
    used = list(dict.fromkeys(box.name for example in result.examples for box in example.detections))
    legend = 20 * (1 + len(used) // 6)
    rows = -(-len(images) // columns)
    sheet, pen = paper(columns * (wide + 10) + 10, rows * (high + below) + legend + 12)
    for number, (example, image) in enumerate(zip(result.examples, images, strict=False)):
        x, y = 10 + number % columns * (wide + 10), 8 + number // columns * (high + below)
        write(pen, x, y, caption(example, float(result.options.get("confidence", CONFIDENCE))), 10, room=wide)
        frame = place(sheet, image, x, y + 15, wide, high - 8)
        for box in example.objects:
            dashed(pen, corners(box, frame))
        for box in example.detections:
            pen.rectangle(corners(box, frame), outline=colours.get(box.name, INK), width=SCALE + 1)
    at = rows * (high + below) + 8
    for number, name in enumerate([*used, "annotated"]):
        x, y = 10 + number % 6 * 125, at + number // 6 * 20
        mark = (SCALE * x, SCALE * (y + 2), SCALE * (x + 16), SCALE * (y + 12))
        if name == "annotated":
            dashed(pen, mark)
        else:
            pen.rectangle(mark, outline=colours.get(name, INK), width=SCALE + 1)
        write(pen, x + 22, y, name, 10, room=100)
    file.parent.mkdir(parents=True, exist_ok=True)
    few = sheet.quantize(96)  # photographs in few colours take a fifth of the space
    few.save(file, optimize=True)
    return file


def caption(example: Example, confidence: float) -> str:
    width = f"width {','.join(map(str, example.path))}, " if example.path else ""
    sure = [box for box in example.detections if (box.score or 0.0) >= confidence]
    summary = f"{len(sure)} found"
    if not sure and example.detections:
        summary = f"surest {example.detections[0].name} {example.detections[0].score or 0.0:.0%}"
    return f"{width}{summary}, {len(example.objects)} annotated"


def paper(width: float, height: float) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    sheet = Image.new("RGB", (round(SCALE * width), round(SCALE * height)), "white")
    return sheet, ImageDraw.Draw(sheet)


def place(sheet: Image.Image, picture: Image.Image, x: float, y: float, wide: float, high: float) -> tuple[int, ...]:
    """Paste a picture as large as fits, and return its left, top, width and height. Small pictures are enlarged
    without smoothing."""
    grow = min(SCALE * wide / picture.width, SCALE * high / picture.height)
    size = max(1, round(grow * picture.width)), max(1, round(grow * picture.height))
    resampling = Image.Resampling.NEAREST if grow > 1 and picture.width <= 96 else Image.Resampling.LANCZOS
    sheet.paste(picture.convert("RGB").resize(size, resampling), (round(SCALE * x), round(SCALE * y)))
    return round(SCALE * x), round(SCALE * y), *size


def corners(box: Box, frame: tuple[int, ...]) -> tuple[float, float, float, float]:
    x, y, wide, high = frame
    left, top, right, bottom = box.box
    left, right = sorted((x + left * wide, x + right * wide))
    top, bottom = sorted((y + top * high, y + bottom * high))
    return left, top, right, bottom


def dashed(pen: ImageDraw.ImageDraw, box: tuple[float, float, float, float], dash: int = 5 * SCALE) -> None:
    """Draw a box in black and white dashes, which is visible on dark and on light images."""
    left, top, right, bottom = box
    pen.rectangle(box, outline="white", width=SCALE)
    for start in range(0, round(right - left), 2 * dash):
        for y in (top, bottom):
            pen.line((left + start, y, min(right, left + start + dash), y), fill="black", width=SCALE)
    for start in range(0, round(bottom - top), 2 * dash):
        for x in (left, right):
            pen.line((x, top + start, x, min(bottom, top + start + dash)), fill="black", width=SCALE)


def write(
    pen: ImageDraw.ImageDraw, x: float, y: float, words: str, size: int, colour: str = INK, *, room: float = 1e9
) -> None:
    while len(words) > 1 and pen.textlength(words, font(size)) > SCALE * (room - 4):
        words = words[:-2] + "…"
    pen.text((SCALE * x, SCALE * y), words, fill=colour, font=font(size))


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
