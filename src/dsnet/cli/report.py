"""dsnet report: what runs have to tell, as one page."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("place", help="A run that `dsnet train` wrote, or a folder with runs and experiment results.")
    parser.add_argument("--out", metavar="FILE", help="File of the page (default: report.html in the place).")
    parser.add_argument("--markdown", metavar="PREFIX", help="Also write PREFIX.md and its figures, for a README.")
    parser.add_argument(
        "--static",
        nargs="+",
        default=(),
        metavar="RUN",
        help="Evaluated runs of static networks. They are drawn in the same figures.",
    )
    parser.add_argument("--root", metavar="FOLDER", help="Folder of the data, if it has moved since training.")


def run(args: Namespace) -> None:
    from dsnet.cli.evaluate import read_result
    from dsnet.pipeline.report import report_of
    from dsnet.report.html import page
    from dsnet.report.readme import export_report

    place = Path(args.place)
    out = Path(args.out) if args.out else place / "report.html"
    if not place.is_dir():
        raise ValueError(f"{place} is not a folder; name a run that `dsnet train` wrote, or a folder that holds runs")
    report = report_of(place, root=args.root, static=[read_result(Path(name), "test") for name in args.static])
    try:
        out.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}); name another file with --out") from error
    print(f"report: {out} ({out.stat().st_size / 1e3:.0f} kB)")
    if args.markdown:
        command = shlex.join(["dsnet", "report", place.resolve().name, "--markdown", Path(args.markdown).name])
        written = export_report(report, Path(args.markdown), command=command)
        print(f"markdown: {' '.join(map(str, written))}")
