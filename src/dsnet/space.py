"""Widths and image sizes as plain values: paths, spaces of paths, and the number of channels at each width."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

WidthPath = tuple[int, ...]
"""One width index per choice point, 0 = slimmest. A static network has the path ().

In a network with several image sizes the index of the size comes first, 0 = smallest: a path is then a setting, a size
and the widths."""
Window = tuple[int, int]
"""The first and the last of a run of adjacent positions in a router's list of widths."""
EXIT = -2
"""In place of every width index of a path: the early classifier answers. (-1 means that the router chooses.) The
index of an image size stays: every size has an exit."""


def is_exit(path: Sequence[int]) -> bool:
    return EXIT in path


def path_name(path: Sequence[int]) -> str:
    """A path as users write and read it: 3, or 0,1,2,3, or exit; with several image sizes, 1,exit is that of one."""
    if is_exit(path):
        return "exit" if path[0] == EXIT else f"{path[0]},exit"
    return ",".join(map(str, path)) or "-"


def setting_name(path: Sequence[int], size: int) -> str:
    """A path of a network with several image sizes as users write and read it: 80px, or 80px:3 with its width."""
    return f"{size}px:{path_name(path[1:])}" if path[1:] else f"{size}px"


def path_words(path: Sequence[int]) -> str:
    """A path within a sentence: width 3, path 0,1,2,3, or exit."""
    return "exit" if tuple(path[:1]) == (EXIT,) else f"{'width' if len(path) == 1 else 'path'} {path_name(path)}"


@dataclass(frozen=True)
class Channels:
    """Channel count of a feature map at each width index of the choice point that controls it.

    A map that no choice point controls has one entry; a map whose size is fixed but whose values
    depend on a choice point (a head convolution behind the gate) has equal entries, one per width.

    parts: The counts of the maps that a concatenation is made of, if there are several: each keeps its own leading
    channels.
    """

    counts: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1 or list(self.counts) != sorted(self.counts):
            raise ValueError(f"channel counts {self.counts} must be positive and must not fall from slimmest to widest")

    @classmethod
    def joined(cls, parts: Sequence[Channels]) -> Channels:
        """The channels of a concatenation."""
        counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
        pieces = [piece for part in parts for piece in part.parts or (part.counts,)]
        whole = all(min(piece) == max(piece) for piece in pieces[:-1])
        return cls(counts) if whole else cls(counts, tuple(pieces))

    def ranges(self, width: int) -> list[tuple[int, int]]:
        """The channels of a width among those of the widest, as ranges [start, stop) that do not touch."""
        found: list[tuple[int, int]] = []
        start = 0
        for piece in self.parts or (self.counts,):
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], start + piece[width]
            else:
                found.append((start, start + piece[width]))
            start += piece[-1]
        return found

    @classmethod
    def of(cls, counts: int | Sequence[int], widths: int = 1) -> Channels:
        """Channels from a list of counts, or from one number that is repeated for every width."""
        return cls((counts,) * widths if isinstance(counts, int) else tuple(counts))

    def __getitem__(self, width: int) -> int:
        if not 0 <= width < len(self.counts):
            raise ValueError(
                f"width index {width} is out of range: this layer has {len(self.counts)} widths, "
                f"0 to {len(self.counts) - 1}"
            )
        return self.counts[width]

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[int]:
        return iter(self.counts)

    def __mul__(self, factor: int) -> Channels:
        parts = tuple(tuple(factor * count for count in piece) for piece in self.parts)
        return Channels(tuple(factor * count for count in self.counts), parts)

    def repeated(self, times: int) -> Channels:
        """Every width several times, side by side: once for each image size."""
        if times == 1:
            return self
        counts, *parts = (tuple(count for count in row for _ in range(times)) for row in (self.counts, *self.parts))
        return Channels(counts, tuple(parts))

    @property
    def max(self) -> int:
        return self.counts[-1]


@dataclass(frozen=True)
class WidthSpace:
    """The width indices allowed at each choice point: the full space of a network, or its routing space.

    exit: whether the exits are paths too. Iteration, `size`, `slimmest` and `uniform` are about widths only.
    sized: whether the first entry of a path is the index of an image size.
    """

    choices: tuple[tuple[int, ...], ...]
    exit: bool = False
    sized: bool = False

    def __post_init__(self) -> None:
        for point, allowed in enumerate(self.choices):
            if allowed == (EXIT,) and self.exit:  # the exit alone
                continue
            if not allowed or min(allowed) < 0 or list(allowed) != sorted(set(allowed)):
                raise ValueError(
                    f"choice point {point} allows widths {allowed}; "
                    f"give rising width indices from 0, for example (0, 1, 2)"
                )

    @classmethod
    def full(cls, widths: Iterable[int], *, exit: bool = False, sizes: int = 1) -> WidthSpace:
        """All width indices, given the number of widths at each choice point, at one image size or several."""
        counts = (sizes, *widths) if sizes > 1 else widths
        return cls(tuple(tuple(range(count)) for count in counts), exit, sizes > 1)

    @classmethod
    def only(cls, path: WidthPath, *, sized: bool = False) -> WidthSpace:
        """The space of one path."""
        return cls(tuple((width,) for width in path), is_exit(path), sized)

    @classmethod
    def around(cls, paths: Sequence[WidthPath], *, sized: bool = False) -> WidthSpace:
        """The smallest space that holds these paths. One of them at least is no exit."""
        wide = [path for path in paths if not is_exit(path)]
        columns = [sorted(set(column)) for column in zip(*wide, strict=True)]
        if sized:
            columns[0] = sorted({path[0] for path in paths})
        return cls(tuple(map(tuple, columns)), len(wide) < len(paths), sized)

    def size_of(self, path: Sequence[int]) -> int:
        """The index of the image size of a path; 0 where there is one size."""
        return path[0] if self.sized else 0

    def widths_of(self, path: WidthPath) -> WidthPath:
        """The width indices of a path, without the image size."""
        return path[1:] if self.sized else path

    def rows(self, path: WidthPath) -> WidthPath:
        """Which of the widths of its layers each part of the full network runs at: the front, and then every segment.

        The layers of a network with several image sizes have every width once for each size, side by side.
        """
        size, sizes = self.size_of(path), len(self.choices[0]) if self.sized else 1
        return size, *(width if width == EXIT else width * sizes + size for width in self.widths_of(path))

    def restrict(self, routing: Sequence[int] | Sequence[Sequence[int]] | None) -> WidthSpace:
        """A subspace: allowed indices per choice point, or one list of indices for all of them."""
        if routing is None:
            return self
        if not len(self) and len(routing):
            raise ValueError(f"routing {routing} was given but the network has no choice points; leave it out")
        try:
            entries: list[Any] = list(routing)
            if entries and all(_is_index(entry) for entry in entries):
                entries = [entries] * len(self)
            per_point = [tuple(_index(width) for width in entry) for entry in entries]
        except TypeError:
            raise ValueError(
                f"routing {routing!r} is not understood; give one list of width indices, or one list per choice point"
            ) from None
        if len(per_point) != len(self):
            raise ValueError(
                f"routing {routing} has {len(per_point)} lists but the network has {len(self)} choice points; "
                f"give one list of width indices, or one per choice point"
            )
        for point, (requested, allowed) in enumerate(zip(per_point, self.choices, strict=True)):
            if not set(requested) <= set(allowed):
                raise ValueError(
                    f"routing {list(requested)} at choice point {point} goes beyond its widths; "
                    f"choose from {allowed[0]} to {allowed[-1]}"
                )
        return WidthSpace(tuple(per_point))

    def __len__(self) -> int:
        return len(self.choices)

    def __contains__(self, path: object) -> bool:
        if path in self.exits:
            return True
        return (
            isinstance(path, tuple)
            and len(path) == len(self)
            and all(w in allowed for w, allowed in zip(path, self.choices, strict=True))
        )

    def __iter__(self) -> Iterator[WidthPath]:
        """Every path, slimmest first; the last choice point varies fastest."""
        return itertools.product(*self.choices)

    @property
    def size(self) -> int:
        return prod(len(allowed) for allowed in self.choices)

    @property
    def slimmest(self) -> WidthPath:
        return tuple(allowed[0] for allowed in self.choices)

    @property
    def widest(self) -> WidthPath:
        return tuple(allowed[-1] for allowed in self.choices)

    def at(self, width: int) -> WidthPath:
        """The path with this width at every choice point, at the largest size."""
        sizes = self.widest[: int(self.sized)]
        return self.validate([*sizes, *[width] * (len(self) - len(sizes))])

    @property
    def exits(self) -> list[WidthPath]:
        """The paths of images that the early classifier answers: one for each image size, or none."""
        if not self.exit:
            return []
        return [(size, *(EXIT,) * (len(self) - 1)) for size in self.choices[0]] if self.sized else [(EXIT,) * len(self)]

    @property
    def uniform(self) -> list[WidthPath]:
        """The paths that take the same position in every choice point's list, slimmest first, at every image size."""
        if self.sized:
            widths = WidthSpace(self.choices[1:]).uniform
            return [(size, *path) for size in self.choices[0] for path in widths]
        positions = min((len(allowed) for allowed in self.choices), default=1)
        return [tuple(allowed[k] for allowed in self.choices) for k in range(positions)]

    def sample(self, rng: random.Random) -> WidthPath:
        return tuple(rng.choice(allowed) for allowed in self.choices)

    def validate(self, path: Sequence[int]) -> WidthPath:
        """Return `path` as a tuple, or raise a ValueError that says what is wrong with it."""
        if not isinstance(path, Sequence) or isinstance(path, str) or not all(_is_index(w) for w in path):
            raise ValueError(f"path {path!r} is not a tuple of width indices; for example {self.widest}")
        path = tuple(_index(w) for w in path)
        if len(path) != len(self):
            wanted = f"an image size and {len(self) - 1}" if self.sized else f"{len(self)}"
            raise ValueError(
                f"path {path} has {len(path)} entries but the network has {wanted} choice points; "
                f"give one {'index' if self.sized else 'width index'} for each, for example "
                f"{','.join(map(str, self.widest))}"
            )
        if path in self.exits:
            return path
        for point, (width, allowed) in enumerate(zip(path, self.choices, strict=True)):
            if width == EXIT and point >= self.sized:
                raise ValueError(
                    f"path {path} asks for the exit; it must stand at every choice point"
                    if self.exit
                    else "the network has no exit; train it with the router exit_first, or choose widths"
                )
            if width not in allowed:
                place = point - self.sized
                what = f"image size {width}" if place < 0 else f"width {width} at choice point {place}"
                raise ValueError(f"path {path} asks for {what}; allowed are {', '.join(map(str, allowed))}")
        return path


def _is_index(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _index(value: Any) -> int:
    if not _is_index(value):
        raise TypeError(f"{value!r} is not a width index")
    return operator.index(value)
