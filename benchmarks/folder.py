"""The recipe for folders of photographs against the plain defaults, on small parts of Imagenette and Caltech-101.

    python benchmarks/folder.py --root data --out runs/folder [--seeds 0 1] [--finished] [--export docs/results/folder]

`--root` has the folders imagenette (train and val) and caltech101 (train and test). The parts are drawn by a fixed
seed: 80 training and 100 test images of each of the ten classes of Imagenette, and all images of 20 classes of
Caltech-101, which have 20 to 261 training images each. Runs that are finished below `--out` are not trained again. The
recipe was chosen by other images of Imagenette, which are in neither part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from dsnet.report.tables import markdown_table
from dsnet.results import Evaluation, made, read

PLAIN = "plain defaults, 32 px"
RECIPES = (PLAIN, "recipe for folders, 64 px")
RESULT = "results/test.json"


def parts(root: Path, out: Path) -> dict[str, Path]:
    """Link the images of both parts below `out`, and return their folders by name."""
    folders = {"imagenette, 10 x 80": out / "imagenette", "caltech101, 20 classes": out / "caltech101"}
    rng = random.Random(0)
    for name in listed(root / "imagenette" / "train"):
        for split, count in (("train", 80), ("val", 100)):
            files = listed(root / "imagenette" / split / name)
            link(root / "imagenette" / split / name, rng.sample(files, count), out / "imagenette" / split / name)
    rng = random.Random(0)
    sizes = {name: len(listed(root / "caltech101" / "train" / name)) for name in listed(root / "caltech101" / "train")}
    for name in sorted(rng.sample(sorted(sizes, key=lambda name: (sizes[name], name)), 20)):
        for split in ("train", "test"):
            place = root / "caltech101" / split / name
            link(place, listed(place), out / "caltech101" / split / name)
    return folders


def listed(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def link(source: Path, names: list[str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (target / name).exists():
            (target / name).symlink_to((source / name).resolve())


def trained(folder: Path, root: Path, recipe: str, seed: int) -> Path:
    """A finished run. It is trained in a process of its own, with one thread."""
    if (folder / RESULT).exists():
        return folder
    words = ["--data.root", str(root), "--seed", str(seed), "--threads", "1", "--out", str(folder)]
    if recipe == PLAIN:  # naming any config, even an empty one, leaves the recipe out
        empty = folder.parent / "empty.yaml"
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.write_text("{}\n")
        words += ["--config", str(empty), "--data.image_size", "32"]
    if (folder / "state" / "last.pt").exists():
        words = ["--resume", str(folder)]
    environment = {**os.environ, "DSNET_FIGURES": "off"}
    subprocess.run([sys.executable, "-m", "dsnet", "train", *words], check=True, env=environment)
    return folder


def figures(folder: Path) -> dict[str, float]:
    """Accuracies of a run in percent: single widths, and the dynamic network at the middle one of its budgets."""
    result = read(folder / RESULT, Evaluation)
    assert result.dynamic is not None
    slim, wide, dynamic = result.uniform[0], result.uniform[-1], result.dynamic.middle
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    learned = next((line for line in lines if line["calibration/slimmest"] > 1.5 / len(result.classes)), lines[-1])
    return {
        "slimmest": 100 * slim.score.mean,
        "widest": 100 * wide.score.mean,
        "dynamic": 100 * dynamic.score.mean,
        "share": dynamic.madds.mean / wide.madds,
        "loss": wide.more["loss"].mean,
        "train_loss": lines[-1]["loss/widest"],
        "madds": wide.madds,
        "chance_steps": learned["step"],
        "steps": lines[-1]["step"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--finished", action="store_true", help="train nothing; leave out data without both recipes")
    parser.add_argument("--export", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        for data, root in parts(args.root, args.out).items():
            names = {recipe: f"{root.name}-{'plain' if recipe == PLAIN else 'recipe'}-{seed}" for recipe in RECIPES}
            runs = {recipe: args.out / "runs" / name for recipe, name in names.items()}
            if args.finished and not all((run / RESULT).exists() for run in runs.values()):
                continue
            for recipe, run in runs.items():
                found = figures(trained(run, root, recipe, seed))
                rows.append({"data": data, "recipe": recipe, "seed": seed, **found})
                print(json.dumps(rows[-1]), flush=True)
    if args.export is not None:
        about = made(command="python benchmarks/folder.py")
        args.export.with_suffix(".json").write_text(json.dumps({"made": asdict(about), "rows": rows}, indent=1) + "\n")
        args.export.with_suffix(".md").write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    lines = ["# A recipe for folders of photographs", ""]
    lines.append(
        "Top-1 (%) on test images. Plain defaults are those of `dsnet train` without a config; the recipe is "
        "`--config folder`, which `dsnet train --data.root FOLDER` uses. Dynamic: the dynamic network at its middle "
        "budget, with the share of the widest's MAdds that it spends. Above chance: the optimiser step after which "
        "the slimmest width first scored one and a half times chance on the calibration images."
    )
    for data in dict.fromkeys(row["data"] for row in rows):
        cells = []
        for recipe in RECIPES:
            mine = [row for row in rows if (row["data"], row["recipe"]) == (data, recipe)]
            accuracies = [spread([row[key] for row in mine], 1) for key in ("slimmest", "dynamic", "widest")]
            losses = [spread([row[key] for row in mine], 2) for key in ("train_loss", "loss")]
            steps = f"{max(row['chance_steps'] for row in mine)} of {max(row['steps'] for row in mine)}"
            accuracies[1] += f" at {mean(row['share'] for row in mine):.0%}"
            cells.append([recipe, f"{mine[0]['madds'] / 1e6:.1f}M", *accuracies, *losses, steps])
        columns = ["<recipe", "MAdds", "slimmest", "dynamic", "widest", "train loss", "test loss", "above chance"]
        lines += ["", f"## {data}", "", *markdown_table(columns, cells)]
        seeds = sorted({row["seed"] for row in rows if row["data"] == data})
        several = f"Mean and range over seeds {', '.join(map(str, seeds))}."
        lines += ["", several if len(seeds) > 1 else f"One seed, {seeds[0]}."]
    lines += ["", "Made by `python benchmarks/folder.py`; every figure is in the JSON beside this page."]
    return "\n".join(lines) + "\n"


def spread(values: list[float], digits: int) -> str:
    middle = f"{mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
