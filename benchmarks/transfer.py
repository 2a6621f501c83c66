"""What transfer gains: the paper's experiment on a small scale, paired by seed.

    python benchmarks/transfer.py --sources RUN [RUN ...] --out FOLDER --epochs 1 [--data.dataset fashion_mnist ...]
        [--export docs/results/transfer_MODEL]

Every source is a run with trained gates (router gate), one per seed. For each of them four runs on the target data with
the same epochs: from scratch; the source's supernet, fine-tuned; on that supernet, gates from scratch (without gate
transfer) and the source's gates, fine-tuned (with gate transfer). Runs that are finished are not repeated. Words behind
the options go to `dsnet train`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path as File
from statistics import mean, stdev
from typing import Any

from dsnet.config import CONFIG, read_config
from dsnet.reports.tables import human, markdown_table

ARMS = {"scratch": "from scratch", "fresh": "transfer, without gate transfer", "kept": "transfer, with gate transfer"}
PAPER = {"fresh": 97.4, "kept": 97.8}  # DS-ResNet from ImageNet to CIFAR-10, top-1


def command(out: File, *words: str) -> None:
    """A run of `dsnet train`, unless it is finished."""
    if (out / "results" / "test.json").exists():
        return
    resume = ["--resume", str(out)] if (out / "state" / "last.pt").exists() else [*words, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "dsnet", "train", *resume], check=True)


def arms(source: File, out: File, epochs: int, words: list[str]) -> dict[str, File]:
    """The three routed networks of one seed."""
    seed, model = str(read_config(source / CONFIG).seed), read_config(source / CONFIG).model.name
    times = ["--optim.epochs", str(epochs), "--sgs_optim.epochs", str(epochs)]
    common = ["--seed", seed, "--config", str(File(__file__).parents[1] / "configs" / "transfer_small.yaml")]
    gates = ["--sgs.router", "gate", "--sgs.targets", read_config(source / CONFIG).sgs.spec.targets]
    scratch = [*common, "--model.name", model, "--optim.lr", "0.1", *gates, *times, *words]
    command(out / "scratch", *scratch)
    command(out / "supernet", "--from", str(source), *common, "--stage", "supernet", *times, *words)
    again = ["--stage", "gate", "--from", str(out / "supernet"), *gates, *times, "--seed", seed]
    command(out / "fresh", *again)
    command(out / "kept", *again, "--gate_from", str(source))
    return {name: out / name for name in ARMS}


def figures(folder: File) -> dict[str, float]:
    result = json.loads((folder / "results" / "test.json").read_text())
    dynamic = result["dynamic"]
    middle = dynamic["rows"][len(dynamic["rows"]) // 2]
    return {
        "slimmest": result["rows"][0]["top1"],
        "widest": result["rows"][-1]["top1"],
        "gates": dynamic["as_trained"]["top1"],
        "gates_madds": dynamic["as_trained"]["madds"],
        "middle": middle["top1"],
        "middle_madds": middle["madds"],
    }


def shown(values: list[float], form: str = ".2%") -> str:
    spread = f" ± {format(stdev(values), form)}" if len(values) > 1 else ""
    return format(mean(values), form) + spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--export", default=None)
    args, words = parser.parse_known_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    seeds = []
    for source in map(File, args.sources):
        config = read_config(source / CONFIG)
        seeds.append(config.seed)
        folders = arms(source, File(args.out) / f"{config.model.name}-{config.seed}", args.epochs, words)
        for name, folder in folders.items():
            found[name].append(figures(folder))
    columns = ["<run", "slimmest", "widest", "gates as trained", "at", "middle budget", "at", "paper, CIFAR-10"]
    cells = []
    for name, rows in found.items():
        values = {key: [row[key] for row in rows] for key in rows[0]}
        cells.append(
            [
                ARMS[name],
                shown(values["slimmest"]),
                shown(values["widest"]),
                shown(values["gates"]),
                human(mean(values["gates_madds"])),
                shown(values["middle"]),
                human(mean(values["middle_madds"])),
                f"{PAPER[name]}%" if name in PAPER else "",
            ]
        )
    model = read_config(File(args.sources[0]) / CONFIG).model.name
    result: dict[str, Any] = {"model": model, "seeds": seeds, "epochs": args.epochs, "words": words, "arms": found}
    gain = [100 * (kept["gates"] - fresh["gates"]) for kept, fresh in zip(found["kept"], found["fresh"], strict=True)]
    early = [
        100 * (fresh["widest"] - new["widest"]) for fresh, new in zip(found["fresh"], found["scratch"], strict=True)
    ]
    result |= {"gate_transfer_gain": gain, "transfer_gain_widest": early}
    lines = [
        f"# Transfer of {model} from CIFAR-10",
        "",
        f"Target: {' '.join(words)}. {len(seeds)} seeds, {args.epochs} epochs of each stage, top-1 on the test split.",
        "",
        *markdown_table(columns, cells),
        "",
        f"Widest path, transfer over scratch, points by seed: {', '.join(f'{value:+.2f}' for value in early)}. "
        f"Gates as trained, with over without gate transfer: {', '.join(f'{value:+.2f}' for value in gain)}; "
        f"the paper reports {PAPER['kept'] - PAPER['fresh']:+.1f}.",
        "",
        "Made by `python benchmarks/transfer.py`; every figure is in the JSON beside this page.",
    ]
    print("\n".join(lines))
    if args.export:
        prefix = File(args.export)
        prefix.with_name(prefix.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
        prefix.with_name(prefix.name + ".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
