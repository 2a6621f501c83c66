"""A document as Markdown with its pictures beside it, for a README."""

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
    """PREFIX.md and its pictures, PREFIX.png, PREFIX-2.png and so on; returns what was written. suffix: of figures."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []

    def beside(block: Figure | Images, end: str) -> Path:
        number = f"-{len(pictures) + 1}" if pictures else ""
        pictures.append(prefix.with_name(f"{prefix.name}{f'-{block.name}' if block.name else number}{end}"))
        return pictures[-1]

    def lines_of(block: Block) -> list[str]:
        if isinstance(block, Figure):
            file = beside(block, suffix)
            write_whole(file, draw(block.content, to="png" if suffix == ".png" else "svg"))
            return [f"![{plain(block.content.title)}]({file.name})", ""]
        if isinstance(block, Images):
            file = beside(block, ".png")
            write_whole(file, block.pictures[0].png if block.sheet else sheet(block))
            return [f"![{plain(block.title)}]({file.name})", ""]
        lines = words_of(block) if isinstance(block, Text) else table_of(block)
        return [*lines, ""] if lines else []

    many = len(document.chapters) > 1
    lines = [f"# {plain(document.title)}", "", *([plain(document.about), ""] if document.about else [])]
    for chapter in document.chapters:
        if many:
            lines += [f"## {plain(chapter.title)}", "", *([plain(chapter.about), ""] if chapter.about else [])]
        lines += [line for block in chapter.lead for line in lines_of(block)]
        for section in chapter.sections:
            lines += [f"{'###' if many else '##'} {plain(section.title)}", ""] if section.title else []
            lines += [line for block in section.blocks for line in lines_of(block)]
    page = prefix.with_name(prefix.name + ".md")
    write_whole(page, ("\n".join([*lines, *footer]) + "\n").encode())
    return [page, *pictures]


def words_of(text: Text) -> list[str]:
    if text.kind == "code":  # a README is not the place
        return []
    if text.kind == "missing":
        return [f"*{plain(text.title)} {plain(text.words)}*"]
    return [plain(line) for line in text.words.splitlines()]


def table_of(table: Table) -> list[str]:
    content = table.content
    rows = [[plain(cell) for cell in row] for row in content.rows]
    lines = markdown_table(content.columns, rows)
    if content.note:
        lines += ["", *(plain(line) for line in content.note.splitlines())]
    if table.look == "folded":
        return [f"<details><summary>{plain(content.title)}</summary>", "", *lines, "", "</details>"]
    return [f"**{plain(content.title)}**", "", *lines] if content.title else lines


def plain(words: str) -> str:
    """Words that stay in their line and their cell, and are no HTML."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


def sheet(images: Images) -> bytes:
    opened = [(Image.open(io.BytesIO(picture.png)).convert("RGB"), picture.lines) for picture in images.pictures]
    return contact_sheet([("", opened)], title=images.title)
