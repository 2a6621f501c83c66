"""Colours of pages and figures on light and dark backgrounds, and SVG that takes its colours from the page."""

from __future__ import annotations

import re
from html import escape


def series_of(colours: str) -> dict[str, str]:
    return {f"c{number}": colour for number, colour in enumerate(colours.split())}


LIGHT = {
    "paper": "#ffffff",
    "ink": "#1d2733",
    "soft": "#5c6b7a",
    "line": "#dfe5eb",
    "seq": "#0b5cad",
    **series_of("#0b5cad #c84a12 #0a7d5c #a8467f #94690a #3d8fc2 #5d6670 #7a4fc0"),
}
DARK = {
    "paper": "#10161d",
    "ink": "#e4eaf0",
    "soft": "#9dabb8",
    "line": "#2b3642",
    "seq": "#6cb6ff",
    **series_of("#6cb6ff #ff9a5c #4fd1a5 #eca3cb #f0c24b #a9dcff #b4bec8 #bda3ff"),
}
# Placeholder colours in matplotlib's output, which are replaced by CSS variables.
PLACES = {role: f"#00{number:02x}fe" for number, role in enumerate(LIGHT, 1)}
FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


def variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{role}:{colour}" for role, colour in colours.items())


def theme() -> str:
    """CSS variables with the colours of pages and figures, light or dark by the reader's preference."""
    light, dark = variables(LIGHT), variables(DARK)
    return f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def cleaned(svg: str, prefix: str, title: str) -> str:
    """Reduce matplotlib's SVG to one element for a page: colours become variables; clips and unused ids are removed."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<clipPath.*?</clipPath>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r' clip-path="[^"]*"', "", svg)
    svg = re.sub(r"(<defs>\s*</defs>)", "", svg)
    svg = re.sub(r'<g id="(series|part|key)[^"]*"', r'<g class="\1"', svg)
    used = set(re.findall(r'xlink:href="#([^"]*)"', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", svg)
    svg = svg.replace('xlink:href="#', f'href="#{prefix}')
    for role, place in PLACES.items():
        svg = svg.replace(place, "currentColor" if role == "ink" else f"var(--{role})")
    svg = re.sub(r" font-family: [^;\"]*;|( transform=\"rotate\(-?0 [^)]*\)\")", "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d+", rounded, tag[0]), svg)
    svg = re.sub(r">\s+<", "><", re.sub(r"\n\s*", " ", svg)).strip()
    size = re.search(r'viewBox="[^"]*"', svg)
    assert size is not None
    name = f'class="chart" role="img" aria-label="{escape(title)}" font-family="{FONTS}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {name} {size[0]}>{svg[svg.index(">") + 1 :]}'


def rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def alone(svg: str) -> str:
    """Make a figure a stand-alone file with its own background and colours, so that it is readable on any page."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    ground = '<rect width="100%" height="100%" rx="6" style="fill:var(--paper)"/>'
    at = svg.index(">")
    sheet = f"<style>{theme()}svg{{color:var(--ink)}}</style>"
    return f'{svg[:at]} width="{width}" height="{height}">{sheet}{ground}{svg[at + 1 :]}\n'
