"""A batch on its way through the parts of a network, in pieces that run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from dsnet.routing.parts import Fork, Outputs, Parts, Step, as_array, likes, on_device
from dsnet.routing.pieces import SIZES, Costs, Group, cut

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """Samples that ran together: their rows in the batch, their width, and what was computed.

    known: what `finish` reads of an answer that was computed before the choice.
    """

    rows: np.ndarray
    width: int
    step: Step
    known: Outputs = field(default_factory=dict)


Start = Callable[[np.ndarray], Piece]


class Batch:
    """A batch on its way through the parts, in pieces."""

    def __init__(self, parts: Parts, x: Any, costs: Costs | None, round_up: bool) -> None:
        assert costs is not None or not round_up
        self.parts, self.x, self.costs, self.round_up = parts, x, costs, round_up
        self.owner, self.place = np.zeros((2, len(x)), np.int64)  # of each row: its piece, and its place in there
        self.pieces: list[Piece] = []
        self.left: list[tuple[np.ndarray, Outputs]] = []
        self.sent: dict[bytes, Any] = {}  # indices on the device, by those of the host

    def start(self, begin: Callable[[Any], tuple[Step, Outputs]]) -> None:
        """Run what all samples share."""

        def run(rows: np.ndarray) -> Piece:
            return Piece(rows, 0, *begin(self.images(rows)))

        self.advance([(np.arange(len(self.x)), None if self.costs is None else self.costs.front, run)])

    def images(self, rows: np.ndarray) -> Any:
        """The images of these rows, which rise."""
        return self.x if len(rows) == len(self.x) else self.x[self.index(rows.tolist())]

    def expect(self, groups: Iterable[np.ndarray]) -> None:
        """Send what picks these groups of rows to the device of the batch: all of it in one copy, because every copy
        waits for the device. Where the batch is in the host's memory, nothing happens."""
        if on_device(self.x):
            picked = [places for rows in groups for _, mine in self.by_width(rows) for _, places in self.where(mine)]
            self.send([places for places in picked if isinstance(places, np.ndarray)])

    def send(self, wanted: Sequence[np.ndarray]) -> None:
        fresh = {places.tobytes(): places for places in wanted}
        self.sent = dict(zip(fresh, likes(self.x, list(fresh.values())), strict=True))

    def index(self, places: list[int]) -> Any:
        """An index of these places: a slice if they follow each other, and else an array, on the device if it is
        there."""
        found = side_by_side(places)
        return found if isinstance(found, slice) else self.sent.get(found.tobytes(), found)

    def advance(self, groups: Sequence[tuple[np.ndarray, np.ndarray | None, Start]]) -> None:
        """Run groups (rows, milliseconds, what runs a piece of them), the longest pieces first."""
        sizes = cut([Group(len(rows), ms) for rows, ms, _ in groups], self.parts.workers)
        tasks, times = list[Callable[[], Piece]](), list[float]()
        for (rows, ms, run), counts in zip(groups, sizes, strict=True):
            for low, high in pairwise([0, *np.cumsum(counts)]):
                tasks.append(partial(run, rows[low:high]))
                times.append(0.0 if ms is None else Group(high - low, ms).time(high - low))
        order = np.argsort(times, kind="stable")[::-1] if self.costs else np.arange(len(tasks))
        ran = self.parts.each([tasks[place] for place in order])
        self.pieces = [ran[place] for place in np.argsort(order)]
        for number, piece in enumerate(self.pieces):
            self.owner[piece.rows], self.place[piece.rows] = number, np.arange(len(piece.rows))
            self.left.append((piece.rows, piece.step.left))

    def where(self, rows: np.ndarray) -> list[tuple[Piece, Any]]:
        """The pieces that hold these rows, in this order, and their places in there."""
        owners, places, found, low = self.owner[rows].tolist(), self.place[rows].tolist(), [], 0
        for high in range(1, len(owners) + 1):
            if high == len(owners) or owners[high] != owners[low]:
                found.append((self.pieces[owners[low]], self.index(places[low:high])))
                low = high
        return found

    def pick(self, rows: np.ndarray, held: Callable[[Piece], Any]) -> Any:
        """These rows of an array that the pieces hold."""
        return self.joined([held(piece)[places] for piece, places in self.where(rows)])

    def joined(self, found: list[Any]) -> Any:
        return found[0] if len(found) == 1 else self.parts.cat(found)

    def fork(self, rows: np.ndarray) -> Fork:
        """The state of these rows at the choice point, without its scores."""
        forks = [(piece.step.fork, places) for piece, places in self.where(rows)]

        def part(name: str) -> Any:
            found = [getattr(fork, name) for fork, _ in forks]
            if found[0] is None:
                return None
            return self.joined([array[places] for array, (_, places) in zip(found, forks, strict=True)])

        return Fork(part("x"), part("scaled"), None, part("exit"))

    def by_width(self, rows: np.ndarray | None = None) -> list[tuple[int, np.ndarray]]:
        """The widths that these rows come from, or all of them, each with its rows in the order of the pieces."""
        rows = np.concatenate([piece.rows for piece in self.pieces]) if rows is None else rows
        width = np.array([piece.width for piece in self.pieces])[self.owner[rows]]
        return [(one, rows[width == one]) for one in dict.fromkeys(width.tolist())]

    def keep_known(self, rows: np.ndarray) -> None:
        """Let the answers that were known before the choice be those of these rows."""

        def known(name: str) -> Any:
            return self.pick(rows, lambda piece: piece.known[name])

        if len(rows):
            self.left.append((rows, {name: known(name) for name in self.pieces[0].known}))

    def scores(self) -> np.ndarray:
        """The router's scores [B, R] at the choice point."""
        found = as_array(self.joined([piece.step.fork and piece.step.fork.scores for piece in self.pieces]))
        scores = np.empty_like(found)
        scores[np.concatenate([piece.rows for piece in self.pieces])] = found
        return scores

    def finish(self) -> Outputs:
        """The outputs, in the order of the batch."""
        parts, left = self.parts, dict[str, Any]()
        names = dict.fromkeys(name for _, held in self.left for name in held)
        mine = {name: [(rows, held[name]) for rows, held in self.left if name in held] for name in names}
        order = {name: np.argsort(np.concatenate([rows for rows, _ in mine[name]])) for name in names}
        if on_device(self.x):
            self.send(list(order.values()))
        for name in names:
            array = self.joined([array for _, array in mine[name]])
            places = self.index(order[name].tolist())
            left[name] = array if isinstance(places, slice) else array[places]
        if self.costs is None or set(parts.manifest.outputs) <= set(left):
            return parts.finish(left)
        sizes = Group(len(self.x), np.ones(SIZES[-1])).pieces(-(-len(self.x) // parts.workers))
        ends = [0, *np.cumsum(sizes)]
        tasks = [partial(parts.finish, {name: held[a:b] for name, held in left.items()}) for a, b in pairwise(ends)]
        return joined(parts, parts.each(tasks))


def in_pieces(parts: Parts, x: Any, costs: Costs | None, run: Callable[[Any], T]) -> list[T]:
    """Run consecutive pieces of a batch on their own; with `costs`, as many images together as the front runs best."""
    if costs is None or len(x) < 2:
        return [run(x)]
    (sizes,) = cut([Group(len(x), costs.front)], parts.workers)
    return parts.each([partial(run, x[low:high]) for low, high in pairwise([0, *np.cumsum(sizes)])])


def joined(parts: Parts, found: Sequence[Outputs]) -> Outputs:
    """The outputs of consecutive pieces as one."""
    return found[0] if len(found) == 1 else {name: parts.cat([one[name] for one in found]) for name in found[0]}


def side_by_side(places: list[int]) -> Any:
    """An index of these places: a slice, which copies nothing, if they follow each other."""
    first, count = places[0], len(places)
    return slice(first, first + count) if places == list(range(first, first + count)) else np.array(places)
