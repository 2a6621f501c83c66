"""dsnet demo: train, export, time and report a first network, and say in one sentence what it gains."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.advise import Advice, Option
    from dsnet.results import Evaluation

FOLLOWS = 1.25  # up to this ratio of the shares of milliseconds and MAdds, the milliseconds follow the MAdds


def add_arguments(parser: Parser) -> None:
    parser.add("--out", "Folder of the run.", default="runs/demo", metavar="FOLDER")
    config = "YAML file of the training, or the name of a config that comes with dsnet."
    parser.add("--config", config, default="demo", metavar="FILE")
    repeats = "Number of rounds of the benchmark. More give steadier milliseconds."
    parser.add("--repeats", repeats, type=int, default=60)
    parser.add("--overwrite", "Delete the run in the folder of --out, if there is one.", action="store_true")
    parser.add("--seed", "Seed of weights, data order and paths (default: 0).", type=int, default=0)


def run(args: Namespace) -> int | None:
    from dsnet.advise import advise, measured_in
    from dsnet.cli import main
    from dsnet.results import Bench, Evaluation, read
    from dsnet.runs.folder import BENCH

    again = ["--overwrite"] if args.overwrite else []
    for words in (
        ["train", "--config", args.config, "--seed", str(args.seed), "--out", args.out, *again],
        ["export", args.out],
        ["bench", args.out, "--runtimes", "onnx", "--paths", "all", "--repeats", str(args.repeats)],
        ["report", args.out],
    ):
        print(f"\n$ dsnet {shlex.join(words)}", flush=True)
        if code := main(words):
            return code
    result = read(Path(args.out) / "results" / "test.json", Evaluation)
    advice = advise(result, measured=measured_in(read(Path(args.out) / BENCH, Bench), result))
    if advice is None or result.dynamic is None:
        raise ValueError(f"{args.config} trains no dynamic network; give a config with several widths and a router")
    print(f"\n{sentence(advice, result)}")
    return None


def sentence(advice: Advice, result: Evaluation) -> str:
    """What the dynamic network gains on this machine: accuracy, MAdds and milliseconds beside the full network's."""
    full, dynamic, form = advice.full, dynamic_of(advice), result.metric.form
    right = f"{dynamic.score:{form}} of {result.images:,} test images correctly (the full network {full.score:{form}})"
    words = f"On this machine the dynamic network classifies {right} with {dynamic.share:.0%} of its MAdds"
    assert dynamic.times is not None
    assert full.times is not None
    times = f"{dynamic.times.mean:.2f} ms per image instead of {full.times.mean:.2f} ms"
    why = "because every call has a fixed cost, and hard images run at two widths"
    share = dynamic.times.mean / full.times.mean
    if share >= 1:
        return f"{words}, but it is not faster: it takes {times}, {why}."
    if share > FOLLOWS * dynamic.share:
        return f"{words} and takes {times}; the milliseconds fall less than the MAdds, {why}."
    return f"{words} and takes {times}."


def dynamic_of(advice: Advice) -> Option:
    """The dynamic network at the budget that is recommended. Where a fixed width is, the cheapest budget that is as
    accurate as the full network, as far as the test images can tell, or else the most accurate budget."""
    if advice.choice is not None and advice.choice.path is None:
        return advice.choice
    budgets = [option for option in advice.options if option.path is None]
    equal = [option for option in budgets if option.to_full is not None and option.to_full.sign >= 0]
    best = max(budgets, key=lambda option: (option.score, -option.share))
    return min(equal, key=lambda option: option.share, default=best)
