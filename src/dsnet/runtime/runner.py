"""Runners take images and return outputs, paths and MAdds, in the caller's order and kind of array."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsnet.cost import PathCosts
from dsnet.errors import RoutingError
from dsnet.latency import cpu, policy_in, require
from dsnet.manifest import Manifest, Policy
from dsnet.pictures import as_batch, check_pictures
from dsnet.results import Setting
from dsnet.routing.batch import in_pieces, joined
from dsnet.routing.budgets import policy_for
from dsnet.routing.parts import Outputs, Parts, Routed, as_array, like, likes
from dsnet.routing.pieces import Costs
from dsnet.routing.policy import Prices
from dsnet.routing.route import run_grouped, run_sizes
from dsnet.space import WidthPath

EXTREME = 1e6  # root mean square of an image's normalised pixels, which lie near 1; above it no network answers


def finite(answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answers, or scores, as they are. Refuse them if any is NaN or infinite."""
    for name, array in answers.items():
        good = np.isfinite(array) if isinstance(array, np.ndarray) else array.isfinite()
        if not bool(good.all()):
            raise RoutingError(
                f"the network's {name} of {int((~good.reshape(len(good), -1).all(1)).sum())} of {len(good)} inputs are "
                f"not finite; check the inputs for NaN and for extremely large values, or train it anew with a lower lr"
            )
    return answers


class Runner:
    """Runs a network with its router, from live weights, cached modules, an ONNX file or a bundle. All of them raise a
    RoutingError instead of giving an answer that is not finite.

    manifest: describes the network. runtime: name of what executes it. place: what was opened, for error messages.
    """

    runtime: str
    place: str = "RUN"

    def __init__(self) -> None:
        self._prices: dict[int, tuple[Manifest, Prices]] = {}
        self._policies: dict[tuple[object, ...], tuple[Manifest, Policy]] = {}

    @property
    def manifest(self) -> Manifest:
        raise TypeError(f"{type(self).__name__} has no manifest")

    @property
    def paths(self) -> list[WidthPath]:
        """The paths that can be pinned, the widest last."""
        return self.manifest.pinnable

    @property
    def digest(self) -> str:
        """The digest of the weights."""
        raise TypeError(f"{type(self).__name__} has no digest")

    @property
    def threads(self) -> int:
        """Number of threads that the runtime uses."""
        raise TypeError(f"{type(self).__name__} does not know its threads")

    @property
    def device(self) -> Any | None:
        """The torch device that images should lie on; None where the runtime takes them from the host's memory."""
        return None

    @property
    def timed(self) -> str:
        """The runtime whose latency table counts for this runner."""
        return self.runtime

    def setting(self, image_size: int | None = None) -> Setting:
        """What the latency of this runner depends on. A raw file is refused: its time depends on the picture, too."""
        if self.manifest.raw:
            raise ValueError(
                f"{self.place} is raw, so its time depends on the picture's size; take milliseconds with a file that "
                f"was exported without --raw, or give a budget"
            )
        return Setting(self.digest, image_size or self.manifest.image_size, self.timed, self.threads, cpu())

    def __call__(
        self,
        x: Any,
        *,
        budget: str | float | None = None,
        max_width: int | None = None,
        path: Sequence[int] | None = None,
        latency: str | None = None,
        latency_cap: str | None = None,
        window: str | Sequence[int] | None = None,
        round_up: bool = False,
        max_size: int | None = None,
    ) -> Routed:
        """Run images, each along its own path, or all of them along a pinned one.

        x: normalised images [B, C, H, W] as an array or tensor; or files, folders or PIL images, which are prepared as
            the manifest says. A raw file takes uint8 pixels [H, W, 3] or a list of them, files, folders or PIL images.
        budget: average MAdds to spend, such as '150M', or a share of the widest path's such as 0.5 or '50%'.
        max_width: upper limit of the width index.
        latency: mean time to spend instead of a budget, such as '5ms', for images that run one at a time.
        latency_cap: time that no image may exceed; wider paths are not taken. Both times need a table that `dsnet
            bench` measured on this machine.
        window: window of widths to choose within as trained, that is with lambda 0, instead of a budget: 'S', 'M' or
            'L' of a gate that was trained with windows, or positions such as (0, 2).
        round_up: run the images of small groups at a wider width, with a group that the router chose there, where that
            takes less time. The answer tells the paths that ran. For bundles only.
        max_size: upper limit of the image size in pixels, of a network that looks at several.
        """
        if self.manifest.raw or not hasattr(x, "dtype"):
            x = as_batch(as_array(x) if hasattr(x, "dtype") else x, self.manifest)
        asked = (budget, max_width, self.manifest.side_of(x), latency, latency_cap, window, max_size)
        if path is None:
            policy = self.policy(*asked)
            if policy.note:
                warnings.warn(policy.note, stacklevel=2)
            return self.run(x, policy, round_up=round_up)
        if round_up or any(value is not None for value in (budget, max_width, latency, latency_cap, window, max_size)):
            raise ValueError(
                "a path pins the widths; leave budget, max_width, max_size, latency, latency_cap, window and round_up "
                "out"
            )
        return self.run_path(x, path)

    def run(self, x: Any, policy: Policy | None = None, *, round_up: bool = False) -> Routed:
        """Run each image along the path that the router picks for it; without a policy, lambda is 0.

        round_up: see `__call__`.
        """
        manifest = self.manifest
        if not manifest.routers:
            raise ValueError(
                f"this {manifest.model} has not learned to route; train it with `dsnet train --stage gate`, "
                f"or choose a path"
            )
        if not manifest.routes:
            raise ValueError(f"{self.runtime} holds one path and cannot route; pin the path {self.paths[0]}")
        self.check_input(x)
        policy, prices = policy or Policy(), self.prices(manifest.side_of(x))
        prices.check_cap(policy)
        if not len(x):
            return self._given(x, Routed(self._empty(), np.zeros((0, manifest.points), np.int64), no_rows(), []))
        routed = self._run_rounded(x, policy, prices) if round_up else self._run(x, policy, prices)
        return self._given(x, routed)

    def run_path(self, x: Any, path: Sequence[int]) -> Routed:
        """Run every image along one path; its MAdds are those of a static network."""
        wanted = self._held(path)
        self.check_input(x)
        outputs = self._survey(x, [wanted], scored=False)[0][0] if len(x) else self._empty()
        madds = self.table(self.manifest.side_of(x)).madds(wanted)
        paths = np.tile(np.array(wanted, np.int64), (len(x), 1))
        return self._given(x, Routed(outputs, paths, np.full(len(x), madds, np.int64), []))

    def survey(self, x: Any, paths: Sequence[WidthPath]) -> tuple[list[Outputs], Any | None]:
        """The outputs of several paths, and the scores [B, R] of the first decision; None without a router."""
        self.check_input(x)
        answers, scores = self._survey(x, [self._held(path) for path in paths], scored=self.manifest.routes)
        for found in [*answers, *([] if scores is None else [{"router_scores": scores}])]:
            finite(found)
        return answers, scores

    def policy(
        self,
        budget: str | float | None = None,
        max_width: int | None = None,
        image_size: int | None = None,
        latency: str | None = None,
        latency_cap: str | None = None,
        window: str | Sequence[int] | None = None,
        max_size: int | None = None,
    ) -> Policy:
        """The policy that meets a budget or a latency, or that of a window, with a cache."""
        window = window if window is None or isinstance(window, str) else tuple(window)
        key, manifest = (budget, max_width, image_size, latency, latency_cap, window, max_size), self.manifest
        cached_for, policy = self._policies.get(key, (None, Policy()))
        if cached_for is not manifest:
            known: dict[str, Any] = {
                "budget": budget,
                "max_width": max_width,
                "max_size": max_size,
                "image_size": image_size,
                "window": window,
            }
            if budget is not None:
                known["table"] = self.table(image_size or manifest.image_size)
            if latency is None and latency_cap is None:
                policy = policy_for(manifest, **known)
            else:
                held = require(self.setting(image_size), self.place)
                policy = policy_in(manifest, held, latency=latency, latency_cap=latency_cap, **known)
            self._policies[key] = manifest, policy
        return policy

    def prices(self, image_size: int) -> Prices:
        manifest = self.manifest
        cached_for, prices = self._prices.get(image_size, (None, None))
        if cached_for is not manifest or prices is None:
            assert manifest.router is not None
            prices = Prices(self.table(image_size), manifest.router)
            self._prices[image_size] = manifest, prices
        return prices

    def table(self, image_size: int) -> PathCosts:
        """The costs at an image size."""
        assert image_size == self.manifest.image_size
        return self.manifest.table

    def check_paths(self, paths: Sequence[WidthPath]) -> None:
        """Refuse paths whose outputs would be meaningless."""

    def check_input(self, x: Any) -> None:
        manifest = self.manifest
        if manifest.raw:
            return check_pictures(x)
        manifest.check_input(x.shape)
        if x.dtype != np.float32 and (kind := str(x.dtype).removeprefix("torch.")) != "float32":
            raise ValueError(
                f"input is {kind} but {manifest.model!r} runs in float32; convert it, and normalise it as "
                f"the model's card says, or give files or PIL images"
            )
        self._check_pixels(x)

    def _check_pixels(self, x: Any) -> None:
        """Refuse images that are not finite or extreme. An exported file answers them with NaN."""
        flat = x.reshape(-1)
        if not len(x) or float(flat @ flat) < EXTREME**2:
            return
        exact = as_array(x.double() if hasattr(x, "double") else x).astype(np.float64)
        if bad := int((~(np.square(exact).reshape(len(x), -1).mean(1) < EXTREME**2)).sum()):
            raise RoutingError(
                f"{bad} of {len(x)} inputs are not finite or extreme: their root mean square exceeds {EXTREME:g}, that "
                f"of normalised pixels is near 1; check how they were made"
            )

    def _held(self, path: Sequence[int]) -> WidthPath:
        """Return the path as a tuple, or raise a ValueError if it cannot be pinned here."""
        manifest = self.manifest
        wanted = manifest.table.space.validate(path)
        if wanted not in manifest.space or wanted not in manifest.pinnable:
            held = manifest.pinnable
            raise ValueError(
                f"path {wanted} is not in this file, which holds {len(held)} paths from {held[0]} to {held[-1]}; "
                f"choose one of them, or export the path as a file of its own"
            )
        return wanted

    def _given(self, x: Any, routed: Routed) -> Routed:
        """Check that all answers are finite, and convert them to the kind of array that the caller gave."""
        finite(routed.outputs)
        for part in routed.scores:
            finite({"router_scores": part})
        outputs = {name: like(x, value) for name, value in routed.outputs.items()}
        paths, madds, *scores = likes(x, [routed.paths, routed.madds, *routed.scores])
        return Routed(outputs, paths, madds, scores)

    def _empty(self) -> Outputs:
        return {name: np.zeros((0, *shape), np.float32) for name, shape in self.manifest.outputs.items()}

    def _run(self, x: Any, policy: Policy, prices: Prices) -> Routed:
        raise TypeError(f"{type(self).__name__} does not route")

    def _run_rounded(self, x: Any, policy: Policy, prices: Prices) -> Routed:
        raise ValueError(
            f"round_up joins groups of a batch, which {self.runtime} does not do; open a bundle, or leave it out"
        )

    def _survey(self, x: Any, paths: Sequence[WidthPath], *, scored: bool) -> tuple[list[Outputs], Any | None]:
        raise TypeError(f"{type(self).__name__} does not run")


def no_rows() -> np.ndarray:
    return np.zeros(0, np.int64)


class GroupedRunner(Runner):
    """Runs a network part by part; batches are grouped by width and image size."""

    def __init__(self, parts: Parts, runtime: str) -> None:
        super().__init__()
        self.parts, self.runtime = parts, runtime

    @property
    def manifest(self) -> Manifest:
        return self.parts.manifest

    def costs(self, count: int) -> Costs | None:
        """Milliseconds of the pieces that a batch of so many images is cut into; None runs each group as one."""
        return None

    def _run(
        self,
        x: Any,
        policy: Policy,
        prices: Prices,
        positions: np.ndarray | None = None,
        *,
        round_up: bool = False,
    ) -> Routed:
        override = None if positions is None else (lambda point, rows, _: positions[rows, point])
        costs, taken = self.costs(len(x)), self.parts.take(x)
        joins = round_up and len(x) > 1
        return run_grouped(self.parts, taken, policy, prices, override=override, costs=costs, round_up=joins)

    def run_forced(self, x: Any, positions: np.ndarray, *, round_up: bool = False) -> Routed:
        """Run each image along given positions [B, points] in the routing space. The gates run but are overruled."""
        self.check_input(x)
        return self._given(x, self._run(x, Policy(), self.prices(x.shape[-1]), positions, round_up=round_up))

    def _survey(self, x: Any, paths: Sequence[WidthPath], *, scored: bool) -> tuple[list[Outputs], Any | None]:
        parts, router = self.parts, self.manifest.router if scored else None
        wanted = list(paths)
        first = None if router is None or not router.spec.single else router.candidates[0]
        sized = self.manifest.table.space.sized
        if router is not None and first is not None and (router.probes or sized) and first not in wanted:
            wanted.append(first)

        def run(x: Any) -> list[Outputs]:
            outputs, starts = run_sizes(parts, x, wanted)
            if router is None:
                return outputs
            if router.probes:
                scores = parts.probe(outputs[wanted.index(router.candidates[0])])
            else:
                start = starts[first[0] if first is not None and sized else 0]
                assert start.fork is not None
                scores = start.fork.scores
            return [*outputs[: len(paths)], {"scores": scores}]

        found = in_pieces(parts, parts.take(x), self.costs(len(x)), run)
        outputs = [joined(parts, one) for one in zip(*found, strict=True)]
        return outputs[: len(paths)], None if router is None else as_array(outputs[-1]["scores"])
