"""A report as one HTML page that needs nothing else: no network, no scripts; for dark and light, screen and paper."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from dsnet.report.blocks import (
    Bars,
    Block,
    Chapter,
    Claims,
    Code,
    Missing,
    Picture,
    Pictures,
    Plot,
    Report,
    Section,
    Sheet,
    Table,
    Text,
    Tiles,
)
from dsnet.report.svg import RULES, THEME, chart, stacked_bars

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = (
    THEME
    + RULES
    + """
*{box-sizing:border-box}
:root{--card:color-mix(in srgb,var(--paper) 96%,var(--ink));--good:var(--c2);--bad:var(--c1)}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;
 font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;text-rendering:optimizeLegibility}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:44px}
h1{font-size:2.1rem;line-height:1.15;letter-spacing:-.02em;margin:.1em 0 .25em;overflow-wrap:anywhere}
h2{font-size:1.45rem;letter-spacing:-.01em;margin:2.2em 0 .2em;overflow-wrap:anywhere}
h3{font-size:1.08rem;margin:2.2em 0 .7em;padding-top:1.1em;border-top:1px solid var(--line)}
h4{font-size:.95rem;margin:1.2em 0 .5em}
p{max-width:75ch;margin:.6em 0}
.eyebrow{color:var(--soft);font-size:.8rem;letter-spacing:.09em;text-transform:uppercase;margin:0}
.about,.note,figcaption,footer{color:var(--soft)}
.note,figcaption,footer{font-size:.86rem}
footer{padding-top:40px;padding-bottom:48px}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:.86em}
code{background:var(--card);border:1px solid var(--line);border-radius:4px;padding:.08em .35em;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;overflow-x:auto;
 margin:.6em 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;margin:1.4em 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.tile dt{color:var(--soft);font-size:.84rem}
.tile dd{margin:0}.tile .value{font-size:1.75rem;font-weight:650;letter-spacing:-.02em;line-height:1.3;
 font-variant-numeric:tabular-nums}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px;align-items:start}
figure{margin:0;border:1px solid var(--line);border-radius:10px;padding:8px;overflow-x:auto;background:var(--paper)}
figure svg{display:block;width:100%;min-width:440px;max-width:760px;height:auto;margin:0 auto}
.scroll{overflow-x:auto;margin:.6em 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.2em 0 .5em}
th,td{padding:.34em .7em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:550;border-bottom-color:var(--soft)}
tbody tr:hover{background:var(--card)}
th:first-child,td:first-child{padding-left:2px}
.left{text-align:left}td.left{white-space:normal;min-width:9ch}
a{color:var(--c0);text-underline-offset:2px}
details{margin:.8em 0}
summary{cursor:pointer;color:var(--soft);font-size:.92rem}summary:hover{color:var(--ink)}
details.chapter{border:1px solid var(--line);border-radius:12px;padding:0 20px;margin:14px 0}
details.chapter>summary{padding:14px 0;font-size:1rem;color:var(--ink)}
details.chapter>summary h2{display:inline;font-size:1.05rem;margin:0}
details.chapter>summary .about{display:block;font-size:.88rem;padding-left:1.1em}
details.chapter>div{padding-bottom:20px}
.missing{border-left:3px solid var(--c4);background:var(--card);border-radius:0 8px 8px 0;padding:.7em 1em;
 margin:.8em 0}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(30%,150px),1fr));gap:14px 12px;
 margin:0;padding:0;list-style:none}
.pictures img{display:block;width:100%;aspect-ratio:1;object-fit:contain;image-rendering:pixelated;border-radius:6px;
 background:var(--card)}
.pictures span{display:block;font-size:.8rem;line-height:1.4;color:var(--soft);overflow-wrap:anywhere}
.pictures .yes{color:var(--good)}.pictures .no{color:var(--bad)}
.pictures span:first-of-type{color:var(--ink);margin-top:5px}
.yes{color:var(--good)}.no{color:var(--bad)}.open{color:var(--soft)}
.verdict{font-weight:600;white-space:nowrap}
.sheet{max-width:100%;background:#fff;border-radius:6px}
@media(max-width:640px){header{padding-top:24px}main,header,footer{padding-left:14px;padding-right:14px}
 details.chapter{padding:0 12px}h1{font-size:1.6rem}}
@media print{:root{"""
    + THEME.split("{", 2)[1].split("}")[0].removeprefix("color-scheme:light dark;")
    + """}
 body{font-size:11pt}figure,.tile,tr,.pictures li{break-inside:avoid}h2,h3,h4{break-after:avoid}
 details::details-content{content-visibility:visible;display:block;block-size:auto}summary{list-style:none}}
"""
)


def page(report: Report) -> str:
    """The whole page."""
    single = len(report.chapters) == 1
    chapters = [chapter(part, anchor(number), single=single) for number, part in enumerate(report.chapters)]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="color-scheme" content="light dark">\n<title>{escape(report.title)}</title>',
            f"<style>{STYLE}</style>\n</head>\n<body>",
            f'<header>\n<p class="eyebrow">dsnet report</p>\n<h1>{escape(report.title)}</h1>',
            f'<p class="about">{escape(report.about)}</p>\n</header>\n<main>',
            *chapters,
            "</main>\n<footer>One file, no scripts, no network. Rest the pointer on a mark for its values.</footer>",
            "</body>\n</html>\n",
        ]
    )


def anchor(number: int) -> str:
    return f"part-{number}"


def chapter(part: Chapter, name: str, *, single: bool) -> str:
    inside = blocks(part.lead) + "\n".join(section(each) for each in part.sections)
    about = f'<span class="about">{escape(part.about)}</span>' if part.about else ""
    if part.folded:
        head = f"<summary><h2>{escape(part.title)}</h2> {about}</summary>"
        return f'<details class="chapter">{head}<div id="{name}">{inside}</div></details>'
    head = "" if single else f"<h2>{escape(part.title)}</h2>{about}"
    return f'<article id="{name}">{head}{inside}</article>'


def section(part: Section) -> str:
    return f"<section><h3>{escape(part.title)}</h3>{blocks(part.blocks)}</section>"


def blocks(parts: Sequence[Block]) -> str:
    """Figures that follow each other stand side by side."""
    done: list[str] = []
    beside: list[str] = []
    for part in [*parts, None]:
        if isinstance(part, Plot | Bars):
            drawn = chart(part.figure) if isinstance(part, Plot) else stacked_bars(part.figure)
            beside.append(f"<figure>{drawn}</figure>")
            continue
        if beside:
            done.append(f'<div class="figures">{"".join(beside)}</div>')
            beside = []
        if part is not None:
            done.append(block(part))
    return "\n".join(done)


def block(part: Block) -> str:
    match part:
        case Text(words):
            return f"<p>{ticked(words)}</p>"
        case Missing(what, remedy):
            return f'<p class="missing"><strong>Missing: {escape(what)}.</strong> {ticked(remedy)}</p>'
        case Tiles(figures):
            tiles = (
                f'<div class="tile"><dt>{escape(label)}</dt><dd class="value">{escape(value)}</dd>'
                f'<dd class="note">{escape(note)}</dd></div>'
                for label, value, note in figures
            )
            return f'<dl class="tiles">{"".join(tiles)}</dl>'
        case Pictures(title, pictures):
            return f'<h4>{escape(title)}</h4><ul class="pictures">{"".join(map(picture, pictures))}</ul>'
        case Sheet(png, words):
            return f'<p><img class="sheet" src="{uri(png)}" alt="{escape(words)}"></p>'
        case Code(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        case Claims(claims):
            return claim_table(claims)
        case Table():
            return table(part)
    raise AssertionError(part)


def ticked(words: str) -> str:
    """Escaped; what stands between backticks is code."""
    pieces = escape(words).split("`")
    if len(pieces) % 2 == 0:
        return escape(words)
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


def table(part: Table) -> str:
    kinds = [' class="left"' if column.startswith("<") else "" for column in part.columns]
    names = [column.removeprefix("<") for column in part.columns]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, names, strict=True))
    rows = []
    for number, row in enumerate(part.rows):
        cells = [escape(str(cell)) for cell in row]
        if part.links:
            cells[0] = f'<a href="#{part.links[number]}">{cells[0]}</a>'
        rows.append("".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=False)))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    caption = f"<caption>{escape(part.title)}</caption>" if part.title and not part.folded else ""
    note = f'<p class="note">{ticked(part.note)}</p>' if part.note else ""
    drawn = (
        f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'
    )
    return f"<details><summary>{escape(part.title)}</summary>{drawn}</details>" if part.folded else drawn


VERDICTS = {
    True: '<span class="verdict yes">✓ holds</span>',
    False: '<span class="verdict no">✗ does not hold</span>',
    None: '<span class="verdict open">? no verdict</span>',
}


def claim_table(claims: Sequence[dict[str, object]]) -> str:
    columns = ("claim", "paper", "ours")
    head = "".join(f'<th scope="col" class="left">{name}</th>' for name in (*columns, "verdict"))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="left">{escape(str(claim.get(name, "")))}</td>' for name in columns)
        + f'<td class="left">{VERDICTS.get(claim.get("holds"), VERDICTS[None])}</td></tr>'  # type: ignore[call-overload]
        for claim in claims
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(part: Picture) -> str:
    kinds = ["", {True: "yes", False: "no", None: ""}[part.right], ""]  # what it is, the answer, the route
    lines = "".join(
        f'<span class="{kind}">{escape(line)}</span>' for kind, line in zip(kinds, part.lines, strict=False)
    )
    return f'<li><img src="{uri(part.png)}" alt="{escape(", ".join(part.lines))}">{lines}</li>'


def uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
