"""An evaluation over test images that are drawn again with replacement: what a paired bootstrap over images needs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import numpy as np

from dsnet.errors import ResultError
from dsnet.files import write_whole
from dsnet.hull import level, straight
from dsnet.paired import resampled_means
from dsnet.results import BudgetRow, Evaluation, Gate, Stat
from dsnet.routing.traces import Outcome, Traces, by_path
from dsnet.space import WidthPath

FILE = "results/resampled.npz"  # in a run's folder


@dataclass(frozen=True)
class Resampled:
    """The scores of an evaluation over R sets of images, the same sets for every network.

    Args:
        images: Digest of the test images. Only evaluations of the same images can be compared.
        paths: Scores of the evaluation's rows [rows, R].
        routed: Scores of the dynamic network as trained, of its budgets and of its windows [1 + budgets + windows, R];
            no rows without a router.
        madds: Average MAdds of the same rows.
        lottery: Scores of choosing at random with the same shares of paths; nan where some path was not run on all
            images.
        shares: Shares of the images at each width of a choice point [same rows, points, widths, R].
    """

    images: str
    paths: np.ndarray
    routed: np.ndarray
    madds: np.ndarray
    lottery: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, traces: Traces, paths: Sequence[WidthPath], outcomes: Sequence[Outcome]) -> Resampled | None:
        """The scores of some paths, and of the dynamic network as trained and at its budgets. None if they would take
        too long."""
        fixed = [traces.scorer.resample(traces.alike(path)) for path in paths]
        routed = [traces.scorer.resample(outcome.answers) for outcome in outcomes]
        known = [each[1:] for each in (*fixed, *routed) if each is not None]
        if len(known) < len(fixed) + len(routed):
            return None
        draws = len(known[0])
        madds = [resampled_means(outcome.madds, draws)[1:] for outcome in outcomes]
        return cls(
            images=hashlib.sha256(traces.ids.astype(np.int64).tobytes()).hexdigest()[:16],
            paths=np.stack(known[: len(fixed)]),
            routed=np.reshape(known[len(fixed) :], (len(routed), draws)),
            madds=np.reshape(madds, (len(routed), draws)),
            lottery=np.reshape(
                [resampled_lottery(traces, outcome, draws) for outcome in outcomes], (len(routed), draws)
            ),
            shares=resampled_shares(traces, outcomes, draws),
        )

    def __len__(self) -> int:
        return self.paths.shape[1]

    def write(self, folder: Path) -> None:
        file = io.BytesIO()
        arrays = {
            "paths": self.paths,
            "routed": self.routed,
            "madds": self.madds,
            "lottery": self.lottery,
            "shares": self.shares,
        }
        np.savez_compressed(file, allow_pickle=False, images=np.array(self.images), **arrays)
        (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, file.getvalue())

    @classmethod
    def read(cls, folder: Path) -> Resampled | None:
        """The scores that lie in a run's folder; None if there are none."""
        if not (folder / FILE).is_file():
            return None
        try:
            with np.load(folder / FILE) as kept:
                return cls(
                    str(kept["images"]), kept["paths"], kept["routed"], kept["madds"], kept["lottery"], kept["shares"]
                )
        except (OSError, ValueError, KeyError) as error:
            raise ResultError(
                f"{folder / FILE} cannot be read ({error}); delete it, and the run is compared by seed only"
            ) from None

    def evaluation(self, result: Evaluation, number: int) -> Evaluation:
        """The evaluation over one of the sets. The hull is made of its own scores; what was not resampled is nan."""
        scores = self.paths[:, number].tolist()
        rows = tuple(replace(row, score=Stat(score)) for row, score in zip(result.rows, scores, strict=True))
        dynamic = result.dynamic
        if dynamic is not None:
            widths = [(float(row.madds), row.score.mean) for row in rows if row.uniform]
            exits = [(float(row.madds), row.score.mean) for row in rows if row.exits]
            drawn, budgets = [], 1 + len(dynamic.rows)
            for place, row in enumerate((dynamic.as_trained, *dynamic.rows, *dynamic.windows)):
                assert row is not None
                score, madds, mixed = (float(each[place, number]) for each in (self.routed, self.madds, self.lottery))
                shares = self.shares[place, :, :, number].tolist()
                gates = tuple(Gate(tuple(each), nan) for each in shares)
                before = replace(row, gates=gates, lottery=Stat(mixed))
                drawn.append(resampled_row(before, score, madds, widths, exits, concave=bool(dynamic.difficulty)))
            lost = {"auc": Stat(nan), "auc_wider": Stat(nan), "oracle": None}
            rows_of = {"rows": tuple(drawn[1:budgets]), "windows": tuple(drawn[budgets:])}
            dynamic = replace(dynamic, as_trained=drawn[0], **rows_of, **lost)  # type: ignore[arg-type]
        return replace(result, rows=rows, dynamic=dynamic)


def resampled_row(
    row: BudgetRow,
    score: float,
    madds: float,
    widths: list[tuple[float, float]],
    exits: list[tuple[float, float]],
    *,
    concave: bool,
) -> BudgetRow:
    """A budget's row with another score and cost. concave: whether it is compared with the hull of the widths, or with
    straight lines between them."""
    fixed = level(widths, madds) if concave else straight(widths, madds)
    early = level([*exits, *widths], madds) if exits else None
    return replace(
        row,
        score=Stat(score),
        madds=Stat(madds),
        hull=Stat(fixed),
        gain=Stat(100 * (score - fixed)),
        oracle=None,
        exit_hull=None if early is None else Stat(early),
        exit_gain=None if early is None else Stat(100 * (score - early)),
        exit_gain_se=None,
    )


def resampled_shares(traces: Traces, outcomes: Sequence[Outcome], draws: int) -> np.ndarray:
    """Shares of the images at each width [outcomes, points, widths, draws]."""
    points = [len(widths) for widths in traces.table.space.choices]
    found = np.zeros((len(outcomes), len(points), max(points, default=0), draws))
    for row, outcome in zip(found, outcomes, strict=True):
        for point, widths in enumerate(points):
            for width in range(widths):
                row[point, width] = resampled_means(outcome.paths[:, point] == width, draws)[1:]
    return found


def resampled_lottery(traces: Traces, outcome: Outcome, draws: int) -> np.ndarray:
    """The score of choosing at random with the outcome's shares of paths, in every draw [draws]."""
    total = np.zeros(draws)
    for path, rows in by_path(outcome.paths):
        if path not in traces.known or not traces.known[path].all() or traces.scorer.right(path) is None:
            return np.full(draws, nan)
        taken = np.isin(np.arange(len(traces)), rows)
        total += resampled_means(taken, draws)[1:] * resampled_means(traces.right(path, routed=True), draws)[1:]
    return total
