"""Renders a document as one self-contained HTML page without scripts, for dark and light screens and for printing."""

from __future__ import annotations

import base64
from functools import partial
from itertools import count, groupby

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from dsnet.report.document import Block, Document, Figure
from dsnet.report.figures import draw
from dsnet.report.palette import LIGHT, theme, variables


def page(document: Document) -> str:
    """The HTML of a document."""
    env = Environment(loader=PackageLoader("dsnet.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {
        "ticked": ticked,
        "uri": uri,
        "beside": beside,
        "drawn": partial(drawn, numbers=count()),
        "kind": lambda block: type(block).__name__,
    }
    source = env.loader.get_source(env, "page.css")[0] if env.loader is not None else ""
    style = theme() + source.replace("/*light*/", variables(LIGHT))
    written = env.get_template("page.html.jinja").render(document=document, style=Markup(style), anchor=anchor)
    return f"{written.strip()}\n"


def anchor(number: int) -> str:
    """The anchor of a chapter, for links."""
    return f"part-{number}"


def drawn(figure: Figure, *, numbers: count[int]) -> Markup:
    return Markup(draw(figure.content, to="page", prefix=f"f{next(numbers)}-").decode())


def beside(blocks: list[Block]) -> list[list[Block]]:
    """Group blocks: consecutive figures are shown side by side, other blocks alone."""
    groups = [list(group) for _, group in groupby(blocks, lambda block: isinstance(block, Figure))]
    return [part for group in groups for part in ([group] if isinstance(group[0], Figure) else [[b] for b in group])]


def ticked(words: str) -> Markup:
    """Escape text, and mark text between backticks as code."""
    pieces = [escape(piece) for piece in words.split("`")]
    if len(pieces) % 2 == 0:
        return escape(words)
    return Markup("").join(Markup(f"<code>{piece}</code>") if n % 2 else piece for n, piece in enumerate(pieces))


def uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
