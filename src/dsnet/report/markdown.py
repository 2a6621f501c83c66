"""Writes a document as Markdown, with its pictures in the same folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from dsnet.files import write_whole
from dsnet.report.document import Block, Document, Figure, Images, Table, Text
from dsnet.report.figures import draw
from dsnet.report.sheets import contact_sheet
from dsnet.report.tables import markdown_table


def write_markdown(document: Document, prefix: Path, *, footer: Sequence[str] = (), suffix: str = ".png") -> list[Path]:
    """Write PREFIX.md and its pictures PREFIX.png, PREFIX-2.png and so on, and return all files. suffix: file type of
    the figures."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []

    def picture(block: Figure | Images) -> str:
        end = f"-{block.name}" if block.name else f"-{len(pictures) + 1}" if pictures else ""
        file = prefix.with_name(f"{prefix.name}{end}{suffix if isinstance(block, Figure) else '.png'}")
        write_whole(file, bytes_of(block, file.suffix))
        pictures.append(file)
        return f"![{plain(block.content.title if isinstance(block, Figure) else block.title)}]({file.name})"

    many = len(document.chapters) > 1
    parts = [f"# {plain(document.title)}", plain(document.about)]
    for chapter in document.chapters:
        parts += [f"## {plain(chapter.title)}", plain(chapter.about)] if many else []
        level = 3 if many else 2
        for number, block in enumerate(chapter.blocks):
            below = level + any(is_heading(before) for before in chapter.blocks[:number])
            parts.append(
                picture(block)
                if isinstance(block, Figure | Images)
                else markdown(block, level if is_heading(block) else below)
            )
    page = prefix.with_name(prefix.name + ".md")
    write_whole(page, ("\n\n".join(filter(None, [*parts, "\n".join(footer)])) + "\n").encode())
    return [page, *pictures]


def is_heading(block: Block) -> bool:
    return isinstance(block, Text) and block.kind == "heading"


def markdown(block: Text | Table, level: int) -> str:
    """A text or a table as Markdown. level: level of its heading, such as the title of a table."""
    if isinstance(block, Text):
        if block.kind == "code":  # whole files are too long for a README
            return ""
        if block.kind == "missing":
            return f"*{plain(block.title)} {plain(block.words)}*"
        words = "\n".join(map(plain, block.words.splitlines()))
        return f"{'#' * level} {words}" if block.kind == "heading" else words
    title, note = plain(block.content.title), "\n".join(map(plain, block.content.note.splitlines()))
    rows = [[plain(cell) for cell in row] for row in block.content.rows]
    table = "\n".join(markdown_table(block.content.columns, rows)) + (f"\n\n{note}" if note else "")
    if block.look == "folded":
        return f"<details><summary>{title}</summary>\n\n{table}\n\n</details>"
    return f"{'#' * level} {title}\n\n{table}" if title else table


def plain(words: str) -> str:
    """Escape text so that it stays in its line and table cell and is not read as HTML."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


def bytes_of(block: Figure | Images, suffix: str) -> bytes:
    if isinstance(block, Figure):
        return draw(block.content, to="png" if suffix == ".png" else "svg")
    if block.sheet:
        return block.pictures[0].png
    opened = [(Image.open(io.BytesIO(picture.png)).convert("RGB"), picture.lines) for picture in block.pictures]
    return contact_sheet([("", opened)], title=block.title)
