"""What `dsnet slim` makes of the CNN families of pytorchcv: one small variant of every family, with random weights.

    pip install --no-deps pytorchcv
    python benchmarks/zoo.py [FAMILY ...] [--missing] [--limit 60] [--export docs/results/zoo]

A family is a module of `pytorchcv.models`; its variant is the one with the fewest parameters. It is converted with the
default widths and cut, and without sorting, at its own image size. Writes PREFIX.json and PREFIX.md after every family.
Families that are not asked for stay as the file has them, and a variant that the file names is not searched again.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pkgutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import dsnet
from dsnet.errors import SlimError
from dsnet.report.tables import human, markdown_table
from dsnet.slimming.network import slim_with_report

Row = dict[str, Any]
UNRECORDED = ("cannot be recorded", "decides by the values")  # what `dsnet slim` says if torch.export fails


def families() -> list[str]:
    package = import_module("pytorchcv.models")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "common")


def networks(family: str) -> Iterator[Callable[..., nn.Module]]:
    module: Any = import_module(f"pytorchcv.models.{family}")
    for name in module.__all__:
        factory = getattr(module, name)
        if inspect.isfunction(factory) and not name.startswith("get_") and "pretrained :" in (factory.__doc__ or ""):
            yield factory


def shaped(factory: Callable[..., nn.Module]) -> nn.Module:
    """The network without its weights, unless it computes with them while it is made."""
    try:
        with torch.device("meta"):
            return factory().eval()
    except (RuntimeError, NotImplementedError, TypeError):
        return factory().eval()


def params(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def answer(model: nn.Module, image: Tensor) -> Any:
    return model(image.to(next(model.parameters()).device))


def measured(family: str, variant: str | None) -> Row:
    """What became of a family. variant: Its smallest one, if it is known."""
    row: Row = {"family": family}
    factories = [each for each in networks(family) if variant in (None, each.__name__)]
    if not factories:
        return row | {"reason": "it defines no networks"}
    factory = factories[0] if len(factories) == 1 else min(factories, key=lambda each: params(shaped(each)))
    model = shaped(factory)
    row |= {"variant": factory.__name__, "params": params(model)}
    size, channels = getattr(model, "in_size", (224, 224)), getattr(model, "in_channels", 3)
    if not isinstance(size, Sequence) or not isinstance(channels, int):
        return row | {"reason": "it does not take an image"}
    row |= {"size": min(size)}
    torch.manual_seed(0)
    image, original = torch.randn(1, channels, min(size), min(size)), factory().eval()
    try:
        try:
            given = answer(model, image)
        except (RuntimeError, NotImplementedError):  # it needs numbers, not only shapes
            given = answer(original, image)
    except Exception as error:  # networks of other tasks fail on an image in many ways
        return row | {"reason": f"it does not take one image: {str(error).splitlines()[0][:120]}"}
    if not isinstance(given, Tensor) or given.dim() != 2:
        shape = list(given.shape) if isinstance(given, Tensor) else "several values"
        return row | {"reason": f"it is no classifier: it answers an image with {shape}"}
    row |= {"classifier": True}
    try:
        _, report = slim_with_report(original, image, sort="none")
    except SlimError as error:
        return row | {"reason": str(error), "traceable": not any(words in str(error) for words in UNRECORDED)}
    return row | {
        "traceable": True,
        "exact": True,
        "error": report.error,
        "madds": report.madds[-1],
        "sliceable": report.sliceable,
        "slimmest": report.madds[0] / report.madds[-1],
        "front": report.front / report.madds[-1],
        "cut": report.cut,
    }


class Stopped(BaseException):
    """A family took too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Seconds of processor time, which do not depend on what else the machine does."""

    def stop(*_: Any) -> None:
        raise Stopped(f"it was stopped after {seconds} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def summary(rows: Sequence[Row]) -> Row:
    classifiers = [row for row in rows if row.get("classifier")]
    traceable = [row for row in classifiers if row.get("traceable")]
    exact = [row for row in traceable if row.get("exact")]
    return {
        "families": len(rows),
        "classifiers": len(classifiers),
        "traceable": len(traceable),
        "exact": len(exact),
        "share": len(exact) / max(1, len(traceable)),
        "sliceable": median(row["sliceable"] for row in exact) if exact else 0.0,
        "slimmest": median(row["slimmest"] for row in exact) if exact else 0.0,
        "error": max((row["error"] for row in exact), default=0.0),
    }


def page(rows: Sequence[Row], made: Row) -> str:
    found = summary(rows)
    converted = [row for row in rows if row.get("exact")]
    refused = [row for row in rows if row.get("classifier") and not row.get("exact")]
    others = [row for row in rows if not row.get("classifier")]
    wins = sum(row["sliceable"] >= 0.8 for row in converted), sum(row["slimmest"] <= 0.4 for row in converted)
    lines = [
        "# Which CNNs `dsnet slim` converts",
        "",
        f"`python benchmarks/zoo.py` with pytorchcv {made['pytorchcv']} and torch {made['torch']}: the smallest "
        f"variant of each of {found['families']} families of the package, with random weights, the default widths "
        "(0.25, 0.5, 0.75 and 1) and the default cut.",
        "",
        *markdown_table(
            ["<", "families"],
            [
                ["all", str(found["families"])],
                ["classifiers of images", str(found["classifiers"])],
                ["of them recorded by torch.export", str(found["traceable"])],
                ["of them converted, the widest path being the original", f"{found['exact']} ({found['share']:.0%})"],
                ["sliceable share of the MAdds: at least 0.8", f"{wins[0]} (median {found['sliceable']:.2f})"],
                ["MAdds at width 0.25: at most 0.4 of the whole", f"{wins[1]} (median {found['slimmest']:.2f})"],
            ],
        ),
        "",
        f"The largest difference between a widest path and its original is {found['error']:.1g} of the spread of the "
        "answers. Sliceable MAdds are those of layers that become cheaper at slim widths; the front is not among them. "
        "The random weights say nothing about accuracy. `tests/integration/test_zoo.py` checks the laws of converted "
        "networks on these families.",
        "",
        "## Converted",
        "",
        *markdown_table(
            ["<family", "<variant", "pixels", "MAdds", "sliceable", "MAdds at 0.25", "front", "<cut behind"],
            [
                [
                    row["family"], row["variant"], str(row["size"]), human(row["madds"]), f"{row['sliceable']:.2f}",
                    f"{row['slimmest']:.2f}", f"{row['front']:.2f}", f"`{row['cut']}`",
                ]
                for row in converted
            ],
        ),
        "",
        "## Classifiers that are not converted",
        "",
        *markdown_table(
            ["<family", "<variant", "<why, in the words of the error"],
            [[row["family"], row.get("variant", ""), row["reason"].replace("|", "\\|")] for row in refused],
        ),
        "",
        "## Families that do not classify images",
        "",
        *markdown_table(
            ["<family", "<variant", "<why"],
            [[row["family"], row.get("variant", ""), row["reason"].replace("|", "\\|")] for row in others],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--missing", action="store_true", help="measure only families that the file lacks")
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time for a family")
    parser.add_argument("--export", default="docs/results/zoo", metavar="PREFIX")
    args = parser.parse_args()
    file = Path(f"{args.export}.json")
    rows = {row["family"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    made = {"pytorchcv": version("pytorchcv"), "torch": torch.__version__, "dsnet": dsnet.__version__}
    wanted = args.families or families()
    for family in [name for name in wanted if not args.missing or name not in rows]:
        begun = time.process_time()
        try:
            with limited(args.limit), torch.no_grad():
                row = measured(family, rows.get(family, {}).get("variant"))
        except (Exception, Stopped) as error:  # one family must not end the measurement
            row = {"family": family, "reason": str(error)}
        rows[family] = row
        known = [rows[name] for name in sorted(rows)]
        file.write_text(json.dumps({"made": made, "summary": summary(known), "rows": known}, indent=1) + "\n")
        Path(f"{args.export}.md").write_text(page(known, made))
        took = time.process_time() - begun
        print(f"{family}: {row.get('reason') or round(row['slimmest'], 3)} ({took:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
