"""What commands print: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "") -> None:
    """A rich table; columns whose name starts with '<' are left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption=Text(note) if note else None,
        caption_justify="left",
    )
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False).print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The same table as lines of Markdown."""
    head = [column.removeprefix("<") for column in columns]
    rule = [":--" if column.startswith("<") else "--:" for column in columns]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows)]


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def human(count: float) -> str:
    """A count with a unit: 565.4M, 4.01B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.99995 * size:  # 999,999,999 is 1.00B, not 1000.0M
            return f"{count / size:.2f}{unit}" if count < 9.995 * size else f"{count / size:.1f}{unit}"
    return str(int(count))
