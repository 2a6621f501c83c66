"""Runs bundles of `dsnet export`: folders of parts that share one file of weights, for batches."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dsnet.errors import CheckpointError
from dsnet.files import read_limited
from dsnet.latency import cores
from dsnet.latency.pieces import piece_times
from dsnet.manifest import Manifest, Policy, from_metadata
from dsnet.routing.parts import Fork, Outputs, Routed, Step
from dsnet.routing.pieces import Costs
from dsnet.routing.policy import Prices
from dsnet.runtime.engine import ONNX_RUNTIME, Engine, Session, contiguous, run, runtime_of
from dsnet.runtime.runner import GroupedRunner
from dsnet.schema import clipped

BUNDLE, WEIGHTS = "manifest.json", "weights.bin"
EXIT_LOGITS = "exit_logits"  # output of a part: the answer of the early classifier
NOTHING = "nothing"  # placeholder output of a part whose outputs are not read
T = TypeVar("T")


def open_bundle(folder: Path, threads: int = 0, *, engine: Engine | None = None) -> GroupedRunner:
    """Open a bundle: a folder of parts that share one file of weights, for batches."""
    try:
        about = json.loads(read_limited(folder / BUNDLE, "json"))
        held = (folder / WEIGHTS).stat().st_size
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder} is not a bundle ({error}); make one with `dsnet export`") from error
    manifest = from_metadata(folder, about if isinstance(about, dict) else {})
    if str(held) != (stated := clipped(str(about.get("weights")), 40)):
        raise CheckpointError(f"{folder / WEIGHTS} has {held} bytes instead of {stated}; copy the bundle again")
    engine = engine or ONNX_RUNTIME
    parts = BundleParts(folder, manifest, threads, about.get("id", ""), engine)
    runner = BundleRunner(parts, runtime_of(manifest, engine))
    runner.place = str(folder)
    return runner


class BundleRunner(GroupedRunner):
    """Runs a bundle. Several threads may share it."""

    parts: BundleParts

    def __init__(self, parts: BundleParts, runtime: str) -> None:
        super().__init__(parts, runtime)
        self._costs: Costs | None = None
        self.measuring = threading.Lock()

    @property
    def file(self) -> Path:
        return self.parts.folder

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def threads(self) -> int:
        return self.parts.threads

    def costs(self, count: int) -> Costs | None:
        """Milliseconds of pieces, measured when several images first run together on this machine."""
        if count < 2:
            return None
        with self.measuring:
            if self._costs is None:
                setting, table = replace(self.setting(), threads=1), self.manifest.table
                self._costs = Costs(piece_times(self.parts, setting, table), table)
            return self._costs

    def _run_rounded(self, x: Any, policy: Policy, prices: Prices) -> Routed:
        return self._run(x, policy, prices, round_up=True)


class BundleParts:
    """The `Parts` of a bundle; sessions are opened when they are first needed.

    Every session has one thread, and tasks run in parallel. This is more efficient than several threads on one task.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int, id: str, engine: Engine) -> None:
        self.folder, self.manifest, self.id, self.engine = folder, manifest, id, engine
        self.threads = threads or cores()
        self.pool = ThreadPoolExecutor(self.threads)
        self.sessions: dict[str, Session] = {}
        self.lock = threading.Lock()

    def take(self, x: Any) -> np.ndarray:
        return contiguous(x)

    def front(self, x: np.ndarray) -> Step:
        return self._step("front", x)

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> np.ndarray | Fork:
        if point == 0:
            return fork  # the first segment has a single incoming width, so `rest` holds all of it
        maps = (fork.scaled,) if fork.x is None else (fork.x, fork.scaled)
        return self._run(f"first.{point}.{w_in}.{w_out}", *maps)["y"]

    def rest(self, point: int, width: int, x: np.ndarray | Fork) -> Step:
        maps = (x,) if isinstance(x, np.ndarray) else (x.scaled,) if x.x is None else (x.x, x.scaled)
        return self._step(f"rest.{point}.{width}", *maps)

    def probe(self, outputs: Outputs) -> np.ndarray:
        return self._run("probe", outputs["logits"])["router_scores"]

    def finish(self, left: Outputs) -> Outputs:
        names = list(self.manifest.outputs)
        if all(name in left for name in names):
            return {name: left[name] for name in names}
        slots = [slot.name.removeprefix("in_") for slot in self._session("finish").get_inputs()]
        outputs = self._run("finish", *(left[name] for name in slots))
        return {name: outputs[name] for name in names}

    def cat(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    @property
    def workers(self) -> int:
        return self.threads

    def each(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        return [task() for task in tasks] if min(self.threads, len(tasks)) < 2 else list(self.pool.map(call, tasks))

    def _step(self, name: str, *maps: np.ndarray) -> Step:
        outputs = self._run(name, *maps)
        outputs.pop(NOTHING, None)
        if "scaled" not in outputs:
            return Step(None, outputs)
        fork = Fork(*(outputs.pop(part, None) for part in ("x", "scaled", "router_scores", EXIT_LOGITS)))
        return Step(fork, outputs)

    def _check_same(self) -> None:
        """Refuse a bundle that was replaced since it was opened: parts are opened one by one and must not be mixed."""
        try:
            same = json.loads((self.folder / BUNDLE).read_text())["id"] == self.id
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise CheckpointError(f"{self.folder} was removed or exported anew since it was opened; open it again")

    def _session(self, name: str) -> Session:
        with self.lock:
            if name not in self.sessions:
                self._check_same()
                self.sessions[name] = self.engine.open(self.folder / f"{name}.onnx", 1)
            return self.sessions[name]

    def _run(self, name: str, *inputs: np.ndarray) -> Outputs:
        session = self._session(name)
        slots, outputs = session.get_inputs(), [slot.name for slot in session.get_outputs()]
        feed = {slot.name: held for slot, held in zip(slots, inputs, strict=True)}
        return dict(zip(outputs, run(session, self.folder / f"{name}.onnx", outputs, feed), strict=True))


def call(task: Callable[[], T]) -> T:
    return task()
