"""dsnet report: show runs on one HTML page."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

    from dsnet.results import Evaluation


def add_arguments(parser: Parser) -> None:
    parser.add("place", "A run that `dsnet train` wrote, or a folder with runs and experiment results.")
    parser.add("--out", "File of the page (default: report.html in the place).", metavar="FILE")
    parser.add("--markdown", "Also write PREFIX.md and its figures, for a README.", metavar="PREFIX")
    parser.add("--static")
    parser.add("--root")


def run(args: Namespace) -> None:
    from dsnet.cli.evaluate import read_result
    from dsnet.report.collect import report_of
    from dsnet.report.markdown import write_markdown
    from dsnet.report.page import page

    place = Path(args.place)
    out = Path(args.out) if args.out else place / "report.html"
    if not place.is_dir():
        raise ValueError(f"{place} is not a folder; name a run that `dsnet train` wrote, or a folder that holds runs")
    static = [read_result(Path(name), "test") for name in args.static]
    document = report_of(place, images_of=example_images(args.root), static=static)
    try:
        out.write_text(page(document), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}); name another file with --out") from error
    print(f"report: {out} ({out.stat().st_size / 1e3:.0f} kB)")
    if args.markdown:
        command = shlex.join(["dsnet", "report", place.resolve().name, "--markdown", Path(args.markdown).name])
        written = write_markdown(document, Path(args.markdown), footer=[f"Made by `{command}`."])
        print(f"markdown: {' '.join(map(str, written))}")


def example_images(root: str | None) -> Callable[[Path, Evaluation], list[Image.Image]]:
    """A function that reads the example images of a run from its data. Data that several runs share is opened once."""
    from dsnet.data.dataset import Data
    from dsnet.runs.folder import RunFolder
    from dsnet.runs.record import pictures

    opened: dict[str, Data] = {}

    def read(folder: Path, result: Evaluation) -> list[Image.Image]:
        run = RunFolder.of(folder)
        config = run.config()
        key = repr((config.data, result.image_size))
        if key not in opened:
            opened[key] = run.task.open_data(config, root)
        run.reopen(opened[key])
        part = opened[key].split(result.split)
        return pictures(opened[key], part, [example.id for example in result.examples])

    return read
