"""Routers x targets on trained supernets: points above the hull of the uniform sub-networks, at five budgets.

    python benchmarks/routers.py --runs runs/a runs/b --out runs/routers --export docs/results/routers

Each run is a supernet (one seed each); every router is trained on it by stage II. A cell that is finished is not
trained again, so the script can be stopped and called again, also once per seed in parallel.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnet.checkpoint import load
from dsnet.config import CONFIG, read_config
from dsnet.evaluate.dynamic import difficulties, row_of
from dsnet.pipeline import open_data, traces_of, train
from dsnet.report.tables import human, markdown_table, print_table
from dsnet.routing import Policy
from dsnet.routing.budgets import set_threshold_width, solve
from dsnet.training import SGSConfig

GRID = {
    "gate, try_best (the paper's)": SGSConfig("gate", "try_best"),
    "gate, give_up": SGSConfig("gate", "give_up"),
    "gate, narrowest": SGSConfig("gate", "narrowest"),
    "gate, correctness": SGSConfig("gate", "correctness"),
    "gate, kl": SGSConfig("gate", "kl"),
    "threshold": SGSConfig("threshold"),
    "slim_first, kl": SGSConfig("slim_first", "kl"),
    "slim_first, correctness": SGSConfig("slim_first", "correctness"),
}
REST = ("gate, give_up", "gate, narrowest", "gate, kl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=Path, required=True, help="trained supernets, one per seed")
    parser.add_argument("--out", type=Path, required=True, help="folder of the routed runs")
    parser.add_argument("--epochs", type=int, default=3, help="of stage II")
    parser.add_argument("--some", action="store_true", help="without gate on give_up, narrowest and kl")
    parser.add_argument("--export", type=Path, help="write PREFIX.json and PREFIX.md")
    args = parser.parse_args()
    cells = {
        name: [cell(run, args.out, GRID[name], args.epochs) for run in args.runs]
        for name in GRID
        if not args.some or name not in REST
    }
    if "threshold" in cells:  # the strongest plain baseline: its width is tuned for each budget, too
        folders = [args.out / run.name / "threshold-correctness" for run in args.runs]
        cells["threshold, best width per budget"] = [tuned_threshold(folder) for folder in folders]
    rows = [row(name, results) for name, results in cells.items()]
    first = next(iter(cells.values()))[0]
    budgets = [f"{human(found['asked'])}" for found in first["dynamic"]["rows"]]
    columns = ["<router, targets", *budgets, "mean", "largest miss", "AUC", "widest share"]
    title = (
        f"{first['model']} on {first['dataset']}, {len(args.runs)} seeds, {args.epochs} epochs of stage II: points "
        f"above the uniform hull at five budgets"
    )
    print_table(title, columns, rows)
    if args.export:
        args.export.parent.mkdir(parents=True, exist_ok=True)
        for result in (result for results in cells.values() for result in results):
            result["dynamic"].pop("examples")
            result["dynamic"].pop("classes", None)
        content = {"title": title, "runs": [run.name for run in args.runs], "epochs": args.epochs, "cells": cells}
        args.export.with_name(args.export.name + ".json").write_text(json.dumps(content) + "\n")
        lines = [f"# {title}", "", *markdown_table(columns, rows), "", *notes(args.export.name)]
        args.export.with_name(args.export.name + ".md").write_text("\n".join(lines) + "\n")


def cell(run: Path, out: Path, sgs: SGSConfig, epochs: int) -> dict[str, Any]:
    """The result of one router on one supernet, trained unless that was done before."""
    folder = out / run.name / f"{sgs.router}-{sgs.spec.targets}"
    done = folder / "results" / "test.json"
    if not done.exists():
        config = read_config(run / CONFIG)
        optim = replace(config.sgs_optim, epochs=epochs, batch_size=128)
        config = replace(config, stage="gate", source=str(run), sgs=sgs, sgs_optim=optim)
        train(config, folder, resume=(folder / CONFIG).exists())
    return json.loads(done.read_text())


def tuned_threshold(folder: Path) -> dict[str, Any]:
    """A threshold router whose width, too, is chosen for each budget, by its accuracy on the calibration split."""
    done = folder / "results" / "tuned.json"
    if done.exists():
        return json.loads(done.read_text())
    net, config = load(folder), read_config(folder / CONFIG)
    data = open_data(config)
    held_out, test = (
        traces_of(net, part, config, [], name=name)
        for name, part in (("calibration", data.calibration), ("test", data.test))
    )
    reference = json.loads((folder / "results" / "test.json").read_text())
    rows = []
    for found in reference["dynamic"]["rows"]:
        tried = []
        for position in range(1, len(net.candidates)):
            set_threshold_width(held_out, position)
            policy = Policy(solve(held_out, found["asked"]))
            tried.append((held_out.at(policy).correct.double().mean().item(), position, policy))
        _, position, policy = max(tried, key=lambda trial: trial[0])
        set_threshold_width(test, position)
        chosen = row_of(test, policy, difficulties(test))
        rows.append(
            {"asked": found["asked"], "miss": chosen["madds"] / found["asked"] - 1, "width": position, **chosen}
        )
    result = {**reference, "dynamic": {**reference["dynamic"], "rows": rows}}
    done.write_text(json.dumps(result, indent=1))
    return result


def row(name: str, results: list[dict[str, Any]]) -> list[str]:
    """Gains at each budget, mean over seeds, and the spread of the mean gain."""
    gains = [[found["gain"] for found in result["dynamic"]["rows"]] for result in results]
    means = [statistics.mean(gain) for gain in gains]
    spread = f" ± {statistics.stdev(means):.2f}" if len(means) > 1 else ""
    misses = [found["miss"] for result in results for found in result["dynamic"]["rows"]]
    shares = [max(gate["shares"]) for result in results for gate in result["dynamic"]["rows"][2]["gates"]]
    return [
        name,
        *(f"{statistics.mean(column):+.2f}" for column in zip(*gains, strict=True)),
        f"{statistics.mean(means):+.2f}{spread}",
        f"{max(misses, key=abs):+.1%}",
        f"{statistics.mean(result['dynamic']['auc'] for result in results):.3f}",
        f"{max(shares):.0%}",
    ]


def notes(name: str) -> list[str]:
    return [
        "Every router is charged for what it runs: slimming heads, or the slimmest path and its head. The mean is over "
        "the five budgets, ± the standard deviation of that mean over seeds. Largest miss: realised average MAdds on "
        "the test images against the budget asked. Widest share: the largest share of one width at the middle budget.",
        "",
        f"Made by `benchmarks/routers.py`; everything is in {name}.json.",
    ]


if __name__ == "__main__":
    main()
