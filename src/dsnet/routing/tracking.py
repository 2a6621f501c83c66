"""Budget tracking: a running correction that keeps the average MAdds at the budget, whatever the images are.

A budget is an average over the calibration images. On other images the same lambda spends more or less. The tracker
counts what is spent and moves the effective budget, the one that is looked up in the calibrated table:

    effective += sum(asked - spent) / span          over the images of a call, then limited to the calibrated range

This is integral control. The changes add up: after T images the average is off by span * (change of the effective
budget) / T. This vanishes as T grows, whatever the router's response to the effective budget is. If the response has
slope s, an error decays within span / s images. A call with many images counts as half a span at most, so that the
loop is stable for slopes up to 4. At the ends of the range nothing is accumulated (no windup): the tracker forgets what
no budget could have corrected.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from dsnet.cost import PathCosts
from dsnet.errors import RoutingError, must
from dsnet.manifest import Manifest, Policy
from dsnet.pictures import as_batch
from dsnet.routing.budgets import policy_for
from dsnet.routing.parts import Routed, as_array

SPAN = 128  # images


class Tracked(Protocol):
    """The part of a runner's interface that a tracker uses."""

    @property
    def manifest(self) -> Manifest: ...

    def policy(
        self,
        budget: str | float | None = None,
        max_width: int | None = None,
        image_size: int | None = None,
        latency: str | None = None,
        latency_cap: str | None = None,
        *,
        max_size: int | None = None,
    ) -> Policy: ...

    def run(self, x: Any, policy: Policy) -> Routed: ...

    def table(self, image_size: int) -> PathCosts: ...


class BudgetTracker:
    """Runs images like the runner that it is given, and keeps the average MAdds of all of them at the budget.

    The path of an image depends on the images before it. The same images in the same order take the same paths. Several
    threads may share a tracker.

    Args:
        budget, max_width, max_size, latency, latency_cap: What is asked, as a runner takes it. For a latency, the
            tracker keeps the MAdds that take this time on the calibration images.
        image_size: Height and width of the images, if the network takes several sizes.
        span: Number of images over which a deviation is corrected. A short span reacts soon; a long one leaves the
            router more freedom to spend on one stretch of images what it saved on another.
    """

    def __init__(
        self,
        runner: Tracked,
        *,
        budget: str | float | None = None,
        max_width: int | None = None,
        max_size: int | None = None,
        latency: str | None = None,
        latency_cap: str | None = None,
        image_size: int | None = None,
        span: int = SPAN,
    ) -> None:
        must("the tracker's span", span, span >= 1, "be at least 1 image")
        manifest, size = runner.manifest, image_size or runner.manifest.image_size
        if not manifest.routes:
            raise RoutingError(f"this {manifest.model} {manifest.why_fixed()}, so there is no budget to track")
        policy = runner.policy(budget, max_width, size, latency, latency_cap, max_size=max_size)
        if policy.share is None or manifest.router is None:
            raise RoutingError("there is no budget to track; ask for a budget or a latency")
        self.runner, self.span, self.image_size, self._start = runner, span, size, policy
        self.table = runner.table(size)
        self.asked = policy.share * self.table.widest
        rows = [row.madds for row in manifest.router.budgets if row.image_size == size]
        self.range = min(rows), max(rows)
        self._effective, self._images, self._madds = self.asked, 0, 0
        self._lock = threading.Lock()

    def __call__(self, x: Any) -> Routed:
        """Run normalised images [B, C, H, W], or files, folders or PIL images, each along its own path."""
        manifest = self.runner.manifest
        if not hasattr(x, "dtype"):
            x = as_batch(x, manifest)
        if len(x) and (side := manifest.side_of(x)) != self.image_size:
            raise ValueError(
                f"images have {side} pixels but the tracker follows a budget at {self.image_size}; "
                f"make one with image_size={side}"
            )
        routed = self.runner.run(x, self.policy())
        self.add(as_array(routed.madds))
        return routed

    def policy(self) -> Policy:
        """The policy of the next images. The first is the one that was asked for, with its note."""
        effective, start = self.effective, self._start
        if effective == self.asked:
            return start
        return policy_for(self.runner.manifest, effective, image_size=self.image_size, table=self.table, **start.caps)

    def add(self, madds: np.ndarray) -> None:
        """Take note of what images [B] have spent."""
        if not len(madds):
            return
        spent = float(madds.astype(np.float64).mean())
        gain = min(len(madds) / self.span, 0.5)
        with self._lock:
            self._effective = float(np.clip(self._effective + gain * (self.asked - spent), *self.range))
            self._images += len(madds)
            self._madds += int(madds.sum())

    @property
    def effective(self) -> float:
        """The budget in MAdds that is looked up in the calibrated table for the next images."""
        with self._lock:
            return self._effective

    @property
    def images(self) -> int:
        """Number of images so far."""
        return self._images

    @property
    def spent(self) -> float:
        """Average MAdds of the images so far; NaN before the first."""
        with self._lock:
            return self._madds / self._images if self._images else float("nan")
