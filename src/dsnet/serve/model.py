"""A model that is served: its runner, the settings that a request may run at, and how it describes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dsnet.errors import RoutingError
from dsnet.latency import budget_for
from dsnet.manifest import Caps, Manifest
from dsnet.opening import open_runner
from dsnet.pictures import batch_of
from dsnet.prediction.answers import finds_boxes
from dsnet.routing.budgets import check_size, parse_budget
from dsnet.routing.parts import Routed, as_array
from dsnet.runtime.bundle import BUNDLE, BundleRunner
from dsnet.serve.ladder import NO_CAPS, Level, batch_gain, frontier, place_of, routed_level, time_of, timed_levels
from dsnet.serve.scheduler import Setting, ordered
from dsnet.space import WidthPath

BATCH = 16  # images that run together, where a model runs batches
KEPT = 1024  # asks whose settings are kept


@dataclass(frozen=True)
class Ask:
    """What a request asks for; None asks for the best.

    Args:
        budget: Average share of the widest path's MAdds, or MAdds. Under load it may be less.
        min_budget: A budget below which the answer is of no use.
        latency_ms: Mean milliseconds of an image, in place of a budget.
        max_width: Largest width index.
        max_size: Largest image size in pixels, of a model that looks at several.
        path: The path to run, whatever the load.
    """

    budget: float | str | None = None
    min_budget: float | str | None = None
    latency_ms: float | None = None
    max_width: int | None = None
    path: WidthPath | None = None
    max_size: int | None = None

    @property
    def caps(self) -> Caps:
        return {"max_width": self.max_width, "max_size": self.max_size}


class Model:
    """A model that is served. Several threads may run it."""

    def __init__(self, name: str, place: str | Path, *, runtime: Any = None) -> None:
        self.name, self.place = name, Path(place)
        self.seen = signature(self.place)
        self.runner = open_runner(place, threads=1, runtime=runtime)
        if isinstance(self.runner, BundleRunner):
            self.runner.open_all()  # a bundle that is replaced can be served to the end
        self.known, self.held = timed_levels(self.runner)
        self.levels = frontier(self.known)
        one_by_one = self.manifest.raw or self.manifest.kind == "dynamic"
        self.gain, self.most = (1.0, 1) if one_by_one else (batch_gain(self.runner, self.levels), BATCH)
        self.settings = lru_cache(KEPT)(self._settings)
        self.setting = lru_cache(KEPT)(self._setting)  # equal levels have the same setting, and run together

    @property
    def manifest(self) -> Manifest:
        return self.runner.manifest

    @property
    def detects(self) -> bool:
        return finds_boxes(self.manifest)

    def names_of(self, routed: Routed) -> list[str]:
        """The name of every image's path, as users write it."""
        return [self.manifest.name_of(tuple(path)) for path in as_array(routed.paths).tolist()]

    def _setting(self, level: Level) -> Setting:
        place = place_of(level.ms, self.levels)
        return Setting(level, place, level.ms / 1e3, self.gain * level.ms / 1e3, self.most)

    def _settings(self, ask: Ask) -> tuple[Setting, ...]:
        """The settings that a request accepts, cheapest first."""
        if ask.path is not None:
            if ask != Ask(path=ask.path):
                raise RoutingError("a path pins the widths; leave budget, min_budget, latency_ms and caps out")
            return (self.setting(self.pinned(ask.path)),)
        levels = self.capped(**ask.caps)
        if ask.budget is not None or ask.latency_ms is not None:
            own = self.bought(ask)
            cheaper = [level for level in levels if level.ms < own.ms and level.share < own.share]
            levels = [*cheaper, own]
        if ask.min_budget is not None:
            levels = self.above(ask, levels)
        return ordered([self.setting(level) for level in levels])

    def pinned(self, path: Sequence[int]) -> Level:
        """The level of a path; a ValueError if this model does not hold it."""
        manifest = self.manifest
        self.runner.run_path(batch_of([], manifest), path)
        known = next((level for level in self.known if level.path == tuple(path)), None)
        if known is not None:
            return known
        level = Level(self.levels[-1].ms, manifest.table.madds(path) / manifest.table.widest, path=tuple(path))
        return level if self.held is None else replace(level, ms=time_of(level, manifest, self.held))

    def capped(self, max_width: int | None = None, max_size: int | None = None) -> list[Level]:
        """The levels within caps on the width and on the image size."""
        manifest, space = self.manifest, self.manifest.table.space
        check_size(manifest, max_size)
        width = manifest.defaults.max_width if max_width is None else max_width
        size = manifest.defaults.max_size if max_size is None else max_size
        if width is None and size is None:
            return list(self.levels)
        limit = max(space.widths_of(manifest.space.widest), default=0)
        if width is not None and not 0 <= width <= limit:
            raise RoutingError(
                f"max_width is {width}; it is a width index of {self.name}, from 0 (slimmest) to {limit} (widest)"
            )

        def fits(path: WidthPath) -> bool:
            narrow = width is None or max(space.widths_of(path), default=0) <= width
            return narrow and (size is None or manifest.size_of(path) <= size)

        within = [level for level in self.known if level.path is not None and fits(level.path)]
        if not within:
            name, cap = ("max_width", width) if size is None else ("max_size", size)
            raise RoutingError(
                f"{name} is {cap}, but {self.name} runs no chosen path within it; raise it, or leave it out"
            )
        return frontier(within)

    def routed(self, madds: float, caps: Caps) -> Level:
        level = routed_level(self.manifest, madds, None, caps)
        if self.held is not None:
            return replace(level, ms=time_of(level, self.manifest, self.held))
        alike = [one for one in self.known if one.path is None] or self.levels  # of one kind, since routing costs time
        shares, times = zip(*sorted((one.share, one.ms) for one in alike), strict=True)
        return replace(level, ms=float(np.interp(level.share, shares, times)))

    def bought(self, ask: Ask) -> Level:
        """The level of the budget, or of the latency, that a request asks for."""
        if ask.latency_ms is None:
            return self.at(self.madds(ask.budget), ask.caps)
        if ask.budget is not None:
            raise RoutingError("latency_ms and budget both set what is spent; give one of them")
        if not self.manifest.routes:
            fits = [level for level in self.levels if level.ms <= ask.latency_ms]
            return fits[-1] if fits else self.levels[0]
        if self.held is None:
            raise RoutingError(f"the time of {self.name} depends on the picture; give a budget in place of latency_ms")
        return self.at(budget_for(self.manifest, self.held, ask.latency_ms)[0], ask.caps)

    def madds(self, budget: float | str | None) -> float:
        assert budget is not None
        return parse_budget(budget, self.manifest.table)

    def at(self, madds: float, caps: Caps = NO_CAPS) -> Level:
        """The level of a budget: the router's, or the best path that costs no more where nothing is routed."""
        if self.manifest.routes and self.manifest.router is not None and self.manifest.router.budgets:
            return self.routed(madds, caps)
        levels = self.capped(**caps)
        fits = [level for level in levels if level.share * self.manifest.table.widest <= madds * (1 + 1e-9)]
        return fits[-1] if fits else levels[0]

    def above(self, ask: Ask, levels: list[Level]) -> list[Level]:
        """The levels that cost a minimum budget or more."""
        least = self.madds(ask.min_budget) / self.manifest.table.widest
        if ask.budget is not None and self.madds(ask.budget) / self.manifest.table.widest < least:
            raise RoutingError(f"min_budget {ask.min_budget} is more than budget {ask.budget}; lower it")
        kept = [level for level in levels if level.share >= least * (1 - 1e-6)]
        return kept or [max(levels, key=lambda level: level.share)]


def signature(place: Path) -> tuple[object, ...]:
    """What changes when a file, a bundle or a run folder is replaced."""
    names = (BUNDLE, "model.json", "model.safetensors")
    files = [place / name for name in names] if place.is_dir() else [place]
    stats = [(file.name, file.stat()) for file in files if file.exists()]
    return tuple((name, held.st_mtime_ns, held.st_size, held.st_ino) for name, held in stats)
