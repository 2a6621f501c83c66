"""Runs ONNX files of `dsnet export`, and opens bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsnet.errors import CheckpointError, RoutingError
from dsnet.latency import cores
from dsnet.manifest import Manifest, Policy, from_metadata
from dsnet.routing.budgets import lambdas
from dsnet.routing.parts import Outputs, Routed
from dsnet.routing.policy import Prices, decide
from dsnet.routing.route import combined
from dsnet.runtime.bundle import BUNDLE, open_bundle
from dsnet.runtime.engine import ONNX_RUNTIME, Engine, contiguous, run, runtime_of
from dsnet.runtime.runner import Runner
from dsnet.runtime.seal import open_checked
from dsnet.schema import shortened
from dsnet.space import WidthPath, Window, is_exit

IMAGE, BUDGET, MAX_WIDTH, MAX_SIZE, PIN = "image", "budget", "max_width", "max_size", "pin"
DEFAULT, FREE = -1, -1  # the file's own budget; a width that the router chooses


def is_artefact(where: str | Path) -> bool:
    """Whether the path is an ONNX file or a bundle, rather than a run folder."""
    place = Path(where)
    return place.suffix == ".onnx" or (place / BUNDLE).exists()


def open_onnx(where: str | Path, *, threads: int = 0, engine: Engine | None = None) -> Runner:
    """Open an ONNX file or a bundle as a runner. threads: threads of the engine, ONNX Runtime; 0 uses all cores."""
    opened = open_bundle if Path(where).is_dir() else FileRunner
    return opened(Path(where), threads=threads, engine=engine)


class FileRunner(Runner):
    """Runs an ONNX file. A dynamic file runs images one by one; a static file holds one path and takes batches.

    Several threads may share it.
    """

    def __init__(self, file: str | Path, *, threads: int = 0, engine: Engine | None = None) -> None:
        super().__init__()
        engine = engine or ONNX_RUNTIME
        self.file = Path(file)
        self.session, digest = open_checked(engine, self.file, threads)
        self._manifest = from_metadata(self.file, self.session.get_modelmeta().custom_metadata_map)
        if not digest:  # nor is it of a format that had none
            raise CheckpointError(f"{self.file} has no digest, it was cut, or dsnet did not write it; export it again")
        self._check_graph()
        self.runtime = runtime_of(self._manifest, engine)
        self.place, self._threads = str(self.file), threads or cores()
        router = self._manifest.router
        budgets = router.budgets if router is not None and BUDGET in self._manifest.inputs else ()
        self._lambdas = lambdas(budgets, self._manifest.table) if budgets else None
        self._fed: tuple[Policy, dict[str, np.ndarray]] | None = None

    def _check_graph(self) -> None:
        """Refuse a file whose graph is not the one that its manifest describes."""
        manifest = self._manifest
        routed = ["path", "madds"] if manifest.kind == "dynamic" else []
        inputs, outputs = (
            {slot.name for slot in found} for found in (self.session.get_inputs(), self.session.get_outputs())
        )
        scores = {"router_scores"} if manifest.routes else set()
        if inputs != set(manifest.inputs) or outputs != {*manifest.outputs, *routed, *scores}:
            raise CheckpointError(
                f"{self.file} has the inputs {shortened(sorted(inputs))} and outputs {shortened(sorted(outputs))}, "
                f"which are not those of its model card; export it again"
            )

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def digest(self) -> str:
        return self._manifest.digest

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def timed(self) -> str:
        return self.runtime if self.manifest.pins else f"{self.runtime}, simple"

    def _run(self, x: Any, policy: Policy, prices: Prices) -> Routed:
        names = [*self.manifest.outputs, "path", "madds", "router_scores"]
        if self._computes(policy):
            rows = self._each(self._singles(x), self._knobs(policy), names)
        else:
            rows = [self._decided(image, policy, prices, names) for image in self._singles(x)]
        *answers, paths, madds, scores = map(stacked, zip(*rows, strict=True))
        outputs = dict(zip(self.manifest.outputs, (answer[:, 0] for answer in answers), strict=True))
        return Routed(outputs, paths, madds, self._by_decision(scores[:, 0]))

    def _knobs(self, policy: Policy) -> dict[str, np.ndarray]:
        """The inputs besides the image, kept for the next call: making them takes as long as a small network."""
        fed = self._fed  # another thread may replace it
        if fed is None or fed[0] is not policy:
            self._fed = fed = policy, knobs(self.manifest, policy)
        return fed[1]

    def _computes(self, policy: Policy) -> bool:
        """Whether the file computes the policy's lambda and window itself, as its default or from the budget, and knows
        its caps."""
        default, asked = self.manifest.defaults, (policy.lam, policy.window)
        known = (default.lam, default.window) if policy.share is None else self._computed_at(policy.share)
        for name in (MAX_WIDTH, MAX_SIZE):
            cap = getattr(policy, name)
            if not self.manifest.pins and cap != getattr(default, name):
                raise RoutingError(
                    f"{self.file} was exported with --simple, so its cap cannot be changed; export it again without "
                    f"--simple, or with --{name} {cap}"
                )
        if not self.manifest.pins and asked != known:
            raise RoutingError(
                f"{self.file} was exported with --simple and takes no lambda and no window; export it again without "
                f"--simple"
            )
        return asked == known and (policy.max_size is None or MAX_SIZE in self.manifest.inputs)

    def _computed_at(self, budget: float) -> tuple[float, Window | None] | None:
        return None if self._lambdas is None else self._lambdas.at(budget)

    def _decided(self, image: np.ndarray, policy: Policy, prices: Prices, names: Sequence[str]) -> list[np.ndarray]:
        """Route an image at a lambda that the file does not know: decide here, by the scores that the file returns, and
        pin what it decided otherwise."""
        router, free = prices.router, (FREE,) * self.manifest.points

        def pinned(pin: WidthPath) -> tuple[list[np.ndarray], WidthPath, np.ndarray]:
            ((*answers, path, _, scores),) = self._each([image], knobs(self.manifest, policy, pin), names)
            return answers, tuple(path.tolist()), scores

        def decided(path: WidthPath, scores: np.ndarray) -> WidthPath:
            """The path up to the first decision that differs from it; the scores behind that are not known yet."""
            if router.spec.single:
                allowed = prices.allowed(0, policy)
                return router.candidates[decide(scores, prices.at(0, 0), policy, allowed)[0]]
            for point, seen in enumerate(self._by_decision(scores)):
                at = prices.at(point, path[point - 1] if point else 0)
                position = decide(seen, at, policy, prices.allowed(point, policy))[0]
                if (width := router.routing.choices[point][position]) != path[point]:
                    return (*path[:point], width, *free[point + 1 :])
            return path

        answers, path, scores = pinned(free)
        for _ in free:
            if (pin := decided(path, scores)) == path:
                break
            answers, path, seen = pinned(pin)
            scores = scores if router.probes else seen  # a pinned path is not probed
            if router.combines and not is_exit(path):  # nor is its answer combined with that of the exit
                keys, (exit, _, _) = list(self.manifest.outputs), pinned(router.candidates[0])
                alone, early = (dict(zip(keys, found, strict=True)) for found in (answers, exit))
                answers = list(combined(router, path, early, alone).values())
        return [*answers, np.array(path, np.int64), np.array(prices.spent(path), np.int64), scores]

    def _by_decision(self, scores: np.ndarray) -> list[np.ndarray]:
        """The scores [B, R] of each decision; the file returns them one after another."""
        router = self.manifest.router
        assert router is not None
        if router.spec.single or len(router.routing.choices) == 1:
            return [scores]
        ends = np.cumsum([len(widths) for widths in router.routing.choices])
        return np.split(scores, ends[:-1], axis=1)

    def _survey(self, x: Any, paths: Sequence[WidthPath], *, scored: bool) -> tuple[list[Outputs], Any | None]:
        manifest, scores = self.manifest, None
        names = list(manifest.outputs)
        if manifest.kind == "static" and not manifest.raw:
            found = run(self.session, self.file, names, {IMAGE: contiguous(x)})
            return [dict(zip(names, found, strict=True))] * len(paths), None
        extra = ["router_scores"] if scored and manifest.router is not None and not manifest.router.probes else []
        answers: list[Outputs] = []
        images = self._singles(x)
        for path in paths:
            rows = self._each(images, knobs(manifest, manifest.defaults, path), [*names, *extra])
            columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
            answers.append(dict(zip(names, columns[: len(names)], strict=True)))
            scores = columns[-1] if extra else None
        if scored and not extra:
            scores = np.concatenate(
                [row[0] for row in self._each(images, knobs(manifest, manifest.defaults), ["router_scores"])]
            )
        return answers, None if scores is None else self._by_decision(scores)[0]

    def _held(self, path: Sequence[int]) -> WidthPath:
        if not self.manifest.pins:
            raise ValueError(
                f"{self.file} was exported with --simple and runs no chosen path; export it again without --simple"
            )
        return super()._held(path)

    def _singles(self, x: Any) -> list[np.ndarray]:
        """What the file is given for each image: a batch of one, or the picture itself."""
        if self.manifest.raw:
            return [np.ascontiguousarray(picture) for picture in x]
        return singles(x)

    def _each(
        self, images: Sequence[np.ndarray], feed: Mapping[str, np.ndarray], outputs: Sequence[str]
    ) -> list[list[np.ndarray]]:
        """Run the images one by one, and return the outputs of each."""
        return [run(self.session, self.file, list(outputs), {IMAGE: image, **feed}) for image in images]


def knobs(manifest: Manifest, policy: Policy, pin: WidthPath = ()) -> dict[str, np.ndarray]:
    """The inputs of a dynamic file besides the image. Without a pinned path, the router chooses."""
    widest = max(manifest.space.widths_of(manifest.space.widest), default=0)
    feed: dict[str, np.ndarray] = {
        BUDGET: np.array([DEFAULT if policy.share is None else policy.share], np.float32),
        MAX_WIDTH: np.array([widest if policy.max_width is None else policy.max_width], np.int64),
        MAX_SIZE: np.array([manifest.image_size if policy.max_size is None else policy.max_size], np.int64),
        PIN: np.array(pin or (FREE,) * manifest.points, np.int64),
    }
    return {name: held for name, held in feed.items() if name in manifest.inputs}


def singles(x: Any) -> list[np.ndarray]:
    """The images of a batch as batches of one."""
    array = contiguous(x)
    return [array[row : row + 1] for row in range(len(array))]


def stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
