"""Runs bundles of `dsnet export`: folders of parts that share one file of weights, for batches.

The head of a bundle, `manifest.json`, names the folder in which its files lie, and holds their digests. A new export
fills a folder of its own, so a file never changes while it has its name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dsnet.errors import CheckpointError
from dsnet.files import file_digest, matches_digest, settled
from dsnet.latency import cores
from dsnet.latency.pieces import piece_times
from dsnet.manifest import Manifest, Policy, from_metadata
from dsnet.routing.parts import Fork, Outputs, Routed, Step
from dsnet.routing.pieces import Costs
from dsnet.routing.policy import Prices
from dsnet.runtime.engine import ONNX_RUNTIME, Engine, Session, contiguous, run, runtime_of
from dsnet.runtime.runner import GroupedRunner
from dsnet.schema import shortened

BUNDLE, WEIGHTS = "manifest.json", "weights.bin"
PARTS = "parts-"  # what names of the folders with the files begin with
EXIT_LOGITS = "exit_logits"  # output of a part: the answer of the early classifier
NOTHING = "nothing"  # placeholder output of a part whose outputs are not read
T = TypeVar("T")


def open_bundle(folder: Path, threads: int = 0, *, engine: Engine | None = None) -> GroupedRunner:
    """Open a bundle: a folder of parts that share one file of weights, for batches. Every file of it is verified."""
    head, engine = folder / BUNDLE, engine or ONNX_RUNTIME
    if not head.is_file():
        raise CheckpointError(f"{folder} is not a bundle: there is no {BUNDLE} in it; make one with `dsnet export`")

    def read(content: bytes) -> BundleRunner:
        place, manifest, digests = described(folder, content)
        for name, stated in digests.items():
            check_file(place / name, stated)
        parts = BundleParts(folder, place, manifest, threads, digests, engine)
        return BundleRunner(parts, runtime_of(manifest, engine))

    runner = settled(head, read)
    runner.place = str(folder)
    return runner


def described(folder: Path, content: bytes) -> tuple[Path, Manifest, dict[str, str]]:
    """The folder of a bundle's parts, its manifest, and the digests of its files, as its head says."""
    head = folder / BUNDLE
    try:
        about = json.loads(content)
        manifest = from_metadata(folder, about if isinstance(about, dict) else {})
        place, digests, whole = folder / about["parts"], dict(about["files"]), matches_digest(about)
        if strange := [name for name in (about["parts"], *digests) if Path(name).name != name or len(name) > 255]:
            raise ValueError(f"{shortened(strange[0])} is not the name of a file in it")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{head} is damaged or has no digest ({error}); export the bundle again") from error
    if not whole:
        raise CheckpointError(f"{head} does not match its digest, it was damaged or edited; export the bundle again")
    return place, manifest, digests


def check_file(file: Path, stated: str) -> None:
    """Refuse a file of a bundle that is missing or does not match its digest."""
    try:
        found = file_digest(file)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})" if file.is_file() else "does not exist"
        raise CheckpointError(f"{file} {reason}; copy the bundle again, or export it again") from error
    if found != stated:
        raise CheckpointError(f"{file} does not match its digest, it was damaged; copy the bundle again")


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

    def open_all(self) -> None:
        """Open every part now, so that the folder is not needed any more."""
        for name in self.parts.digests:
            if name.endswith(".onnx"):
                self.parts._session(name.removesuffix(".onnx"))

    def costs(self, count: int) -> Costs | None:
        """Milliseconds of pieces, measured when several images first run together on this machine."""
        if count < 2 or self.manifest.space.sized:  # pieces are measured at one image size only
            return None
        with self.measuring:
            if self._costs is None:
                setting, table = replace(self.setting(), threads=1), self.manifest.table.whole
                self._costs = Costs(piece_times(self.parts, setting, table), table)
            return self._costs

    def _run_rounded(self, x: Any, policy: Policy, prices: Prices) -> Routed:
        if self.manifest.space.sized:
            raise ValueError("round_up joins groups of widths at one image size; leave it out, this one has several")
        return self._run(x, policy, prices, round_up=True)


class BundleParts:
    """The `Parts` of a bundle; sessions are opened when they are first needed.

    Every session has one thread, and tasks run in parallel. This is more efficient than several threads on one task.
    """

    def __init__(
        self, folder: Path, place: Path, manifest: Manifest, threads: int, digests: Mapping[str, str], engine: Engine
    ) -> None:
        self.folder, self.place, self.manifest, self.digests = folder, place, manifest, digests
        self.engine = engine
        self.threads = threads or cores()
        self.pool = ThreadPoolExecutor(self.threads)
        self.sessions: dict[str, Session] = {}
        self.lock = threading.Lock()

    def take(self, x: Any) -> np.ndarray:
        return contiguous(x)

    def front(self, x: np.ndarray, size: int = 0) -> Step:
        return self._step(f"front.{size}" if self.manifest.space.sized else "front", x)

    def exit(self, x: np.ndarray, size: int = 0) -> Outputs:
        return {"logits": self._run(f"exit.{size}", x)["logits"]}

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

    def _replaced(self) -> bool:
        """Whether the bundle was removed or exported anew since it was opened."""
        try:
            return described(self.folder, (self.folder / BUNDLE).read_bytes())[0] != self.place
        except (OSError, CheckpointError):
            return True

    def _session(self, name: str) -> Session:
        with self.lock:
            if name not in self.sessions:
                file = self.place / f"{name}.onnx"
                try:
                    check_file(file, self.digests.get(file.name, ""))
                    self.sessions[name] = self.engine.open(file, 1)
                except (CheckpointError, KeyError) as error:
                    if not self._replaced():
                        raise
                    raise CheckpointError(
                        f"{self.folder} was removed or exported anew since it was opened; open it again"
                    ) from error
            return self.sessions[name]

    def _run(self, name: str, *inputs: np.ndarray) -> Outputs:
        session = self._session(name)
        slots, outputs = session.get_inputs(), [slot.name for slot in session.get_outputs()]
        feed = {slot.name: held for slot, held in zip(slots, inputs, strict=True)}
        return dict(zip(outputs, run(session, self.folder / f"{name}.onnx", outputs, feed), strict=True))


def call(task: Callable[[], T]) -> T:
    return task()
