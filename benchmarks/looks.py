"""What a third look in a row would gain over the router of several image sizes, which decides once.

The router looks at one setting, and keeps the answer or goes on to another, whose answer is returned. Here a second
head reads the second answer as well, and may go on to a third setting. The first head knows that: it weighs what going
on is worth on average, second decision included. All answers of a network are computed once, heads are fitted and
settings chosen on the calibration images, for both kinds of routers alike, and accuracies are those of the test images
on the hull over all prices of MAdds. Every look is charged; the second head is free.

    python benchmarks/looks.py RUN [RUN ...] [--root DATA] [--export docs/results/looks]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from turns import write_page

from dsnet.hull import level
from dsnet.latency.timing import machine
from dsnet.models import count
from dsnet.report.tables import markdown_table
from dsnet.runs.folder import RunFolder
from dsnet.space import WidthPath
from dsnet.tasks import images_of
from dsnet.tasks.classification.looks import BUDGETS, LAMBDAS, Known, fitted, read_of, sets_of

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)  # budgets, of the MAdds of the widest at the largest size
DRAWS = 200  # of the test images, for intervals
RIDGE = 1e-2


class Split(NamedTuple):
    """What a head reads of each setting's answer [N, R, F], whether that is right [N, R], and MAdds as shares [R]."""

    read: np.ndarray
    right: np.ndarray
    costs: np.ndarray

    def of(self, rows: list[int]) -> Split:
        return Split(self.read[:, rows], self.right[:, rows], self.costs[rows])


class Routed(NamedTuple):
    """For each price of MAdds and image [L, N]: what was spent, whether the answer is right, and how many looks."""

    spent: np.ndarray
    right: np.ndarray
    looks: np.ndarray

    def points(self, weights: np.ndarray) -> list[tuple[float, float]]:
        """Average cost and accuracy at each price. weights: Of each image [N]; their sum is 1."""
        found: dict[float, float] = {}
        for spent, score in zip((self.spent @ weights).round(9).tolist(), (self.right @ weights).tolist(), strict=True):
            found[spent] = max(score, found.get(spent, 0.0))
        return list(found.items())


Router = Callable[[Split, Split], Routed]
"""Fitted on the first split, routes the second, each with the settings that it chooses from."""


@torch.inference_mode()
def known(net: Any, batches: Any, paths: Sequence[WidthPath]) -> Known:
    """The answers of all settings."""
    answers, labels = [], []
    for batch in batches:
        answers.append(torch.stack(net.forward_paths(batch.images, paths), 1).log_softmax(2))
        labels.append(batch.labels)
    table = count(net.spec.without_router())
    costs = np.array([table.madds(path) for path in paths], np.float64)
    return Known(list(paths), torch.cat(answers), torch.cat(labels), costs)


def split_of(seen: Known) -> Split:
    read = np.stack([read_of(seen.log_probs[:, place]) for place in range(len(seen.settings))], 1)
    return Split(read, seen.right, seen.costs / seen.costs.max())


def once(cal: Split, test: Split) -> Routed:
    """The router as it is: one decision behind the first look."""
    scores = fitted(cal.read[:, 0], cal.right).scores(test.read[:, 0])
    prices = np.concatenate([[0.0], test.costs[1:]])
    chosen = (scores[None] - LAMBDAS[:, None, None] * prices).argmax(2)
    images = np.arange(len(scores))
    return Routed(test.costs[0] + prices[chosen], test.right[images, chosen], 1 + (chosen > 0))


def again(cal: Split, test: Split) -> Routed:
    """A second decision behind the second look, between its answer and the third setting."""
    first, second = fitted(cal.read[:, 0], cal.right), fitted(both(cal), cal.right[:, 1:])
    (keep, middle, last), (early, late) = test.costs, (second.scores(both(split)) for split in (cal, test))
    scores, inputs, goals = first.scores(test.read[:, 0]), explained(cal, cal), explained(cal, test)
    solved = np.linalg.solve(inputs.T @ inputs + RIDGE * len(inputs) * np.eye(inputs.shape[1]), inputs.T)
    spent, right, looks = [], [], []
    for price in LAMBDAS:
        worth = np.maximum(early[:, 0], early[:, 1] - price * last)  # of the second look, once it is made
        goes_on = late[:, 1] - price * last > late[:, 0]
        values = np.stack([scores[:, 0], goals @ (solved @ worth) - price * middle, scores[:, 2] - price * last], 1)
        chosen = values.argmax(1)
        third = (chosen == 1) & goes_on
        spent.append(keep + np.select([chosen == 1, chosen == 2], [middle + third * last, last], 0.0))
        right.append(np.where((chosen == 2) | third, test.right[:, 2], test.right[np.arange(len(test.right)), chosen]))
        looks.append(1 + (chosen > 0) + third)
    return Routed(np.array(spent), np.array(right), np.array(looks))


def both(split: Split) -> np.ndarray:
    """What the second head reads: the answers of both looks."""
    return np.concatenate([split.read[:, 1], split.read[:, 0]], 1)


def explained(cal: Split, split: Split) -> np.ndarray:
    """From which the worth of a second look is predicted: what is read of the first, standardised, and its squares."""
    read, mean, std = split.read[:, 0], cal.read[:, 0].mean(0), np.maximum(cal.read[:, 0].std(0), 1e-3)
    found = (read - mean) / std
    return np.concatenate([np.ones((len(read), 1)), found, found**2], 1)


def even(split: Split) -> np.ndarray:
    return np.full(len(split.right), 1 / len(split.right))


def fixed(split: Split, weights: np.ndarray) -> list[tuple[float, float]]:
    """Cost and accuracy of every setting alone."""
    return list(zip(split.costs.tolist(), (weights @ split.right).tolist(), strict=True))


def reached(routed: Routed, split: Split, weights: np.ndarray, budgets: Sequence[float]) -> np.ndarray:
    """Accuracy at some budgets; below the first look, that of fixed settings."""
    points, alone = routed.points(weights), fixed(split, weights)
    least = min(cost for cost, _ in points)
    return np.array([level(alone if budget < least else points, budget) for budget in budgets])


def best(router: Router, sets: list[list[int]], cal: Split) -> list[int]:
    """The settings with which a router is best on the calibration images, over many budgets."""
    budgets = np.linspace(cal.costs.min(), 1.0, BUDGETS).tolist()

    def worth(chosen: list[int]) -> float:
        return float(reached(router(cal.of(chosen), cal.of(chosen)), cal, even(cal), budgets).mean())

    return max(sets, key=worth)


def compared(cal: Known, test: Known, rows: list[int]) -> dict[str, Any]:
    """Both routers on the settings of some rows."""
    some = Known([cal.settings[row] for row in rows], cal.log_probs[:, rows], cal.labels, cal.costs[rows])
    seen, unseen, sets = split_of(some), split_of(test).of(rows), sets_of(some)
    unseen = unseen._replace(costs=seen.costs)
    routers: dict[str, Router] = {"once": once, "again": again}
    fits = {"once": sets, "again": [one for one in sets if len(one) == 3]}
    if not fits["again"]:
        raise ValueError(f"the hull of {len(rows)} settings has two corners only; a third look needs three")
    chosen = {name: best(router, fits[name], seen) for name, router in routers.items()}
    routed = {name: router(seen.of(chosen[name]), unseen.of(chosen[name])) for name, router in routers.items()}
    levels = {name: reached(found, unseen, even(unseen), SHARES) for name, found in routed.items()}
    rng, drawn = np.random.default_rng(0), []
    for _ in range(DRAWS):
        weights = rng.multinomial(len(unseen.right), even(unseen)) / len(unseen.right)
        more, less = (reached(routed[name], unseen, weights, SHARES) for name in ("again", "once"))
        drawn.append([*(more - less), (more - less).mean()])
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    gains = [*(levels["again"] - levels["once"]), float((levels["again"] - levels["once"]).mean())]
    spends = routed["again"].spent.mean(1)
    nearest = [int(np.abs(spends - share).argmin()) for share in SHARES]
    thrice = [float((routed["again"].looks[place] == 3).mean()) for place in nearest]
    return {
        "settings": {name: [rows[place] for place in places] for name, places in chosen.items()},
        "once": levels["once"].tolist(),
        "again": levels["again"].tolist(),
        "gain": [float(gain) for gain in gains],
        "low": low.tolist(),
        "high": high.tolist(),
        "thrice": [*thrice, float(np.mean(thrice))],
    }


def measured(run: Path, root: str | None) -> dict[str, Any]:
    """All of one run: all settings, the sizes at full width, and the widths at the largest size."""
    folder = RunFolder.of(run)
    net, (config, data) = folder.load().float().eval(), folder.opened(root)
    if not net.spec.sizes:
        raise ValueError(f"{run} runs at one image size; give a run with several")
    paths, space = net.space.uniform, net.space
    cal, test = (
        known(net, images_of(folder.task, data, split, config).batches(), paths) for split in ("calibration", "test")
    )
    widest, largest = space.widths_of(space.widest), space.size_of(space.widest)
    rows = {
        "all settings": list(range(len(paths))),
        "sizes, full width": [row for row, path in enumerate(paths) if space.widths_of(path) == widest],
        "widths, largest size": [row for row, path in enumerate(paths) if space.size_of(path) == largest],
    }
    shown = {name: mine for name, mine in rows.items() if len(mine) > 2}
    shown = {name: mine for place, (name, mine) in enumerate(shown.items()) if mine not in list(shown.values())[:place]}
    names = [net.manifest().name_of(path) for path in paths]
    return {
        "run": str(config.model.name),
        "dataset": data.name,
        "sizes": list(net.spec.sizes),
        "images": [len(cal.labels), len(test.labels)],
        "found": {name: compared(cal, test, mine) for name, mine in shown.items()},
        "names": names,
        "epochs": config.optim.epochs,
        "seed": config.seed,
    }


def lines_of(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, one in found["found"].items():
        for place, share in enumerate((*SHARES, None)):
            values = [np.mean(one[key]) if share is None else one[key][place] for key in ("once", "again")]
            span = f"{100 * one['low'][place]:+.2f} to {100 * one['high'][place]:+.2f}"
            rows.append([
                name if not place else "", "mean" if share is None else f"{share:g}",
                *(f"{value:.2%}" for value in values), f"{100 * one['gain'][place]:+.2f}", span,
                f"{one['thrice'][place]:.0%}",
            ])  # fmt: skip
    sizes = ", ".join(map(str, found["sizes"]))
    images = "{:,} calibration and {:,} test images".format(*found["images"])
    columns = ["<settings", "budget", "one decision", "two decisions", "gain, points", "95 %", "three looks"]
    used = []
    for name, one in found["found"].items():
        first, second = (", ".join(found["names"][row] for row in one["settings"][key]) for key in ("once", "again"))
        used.append(f"Settings of {name}: {first} with one decision, {second} with two.")
    return [
        f"## {found['run']} at {sizes} px on {found['dataset']}",
        "",
        f"{images}; {found['epochs']} epochs, seed {found['seed']}.",
        "",
        *markdown_table(columns, rows),
        "",
        *used,
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--root", default=None)
    parser.add_argument("--export", type=Path, default=None)
    args = parser.parse_args()
    found = [measured(run, args.root) for run in args.runs]
    about = machine()
    lines = [
        "# A third look in a row",
        "",
        "Budgets are shares of the MAdds of the widest at the largest size. One decision: the router as it is. Two",
        "decisions: behind the second look, a head that reads both answers may go on to a third setting. Intervals are",
        f"paired, over {DRAWS} draws of the test images.",
        "",
        *(line for one in found for line in lines_of(one)),
        f"Made by `python benchmarks/looks.py RUN` with dsnet {about.dsnet}, torch {about.torch}, {about.machine}.",
    ]
    print("\n".join(lines))
    if args.export is not None:
        write_page(args.export, {"runs": found}, lines)


if __name__ == "__main__":
    main()
