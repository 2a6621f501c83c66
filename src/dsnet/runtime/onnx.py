"""Runs the output of `dsnet export` in ONNX Runtime or another engine: a file as a whole, a bundle part by part."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import onnxruntime as ort

from dsnet.errors import CheckpointError, RoutingError
from dsnet.latency import cores
from dsnet.latency.pieces import piece_times
from dsnet.manifest import Manifest, Policy, from_metadata
from dsnet.routing.budgets import lambdas
from dsnet.routing.parts import Fork, Outputs, Routed, Step, as_array
from dsnet.routing.pieces import Costs
from dsnet.routing.policy import Prices, decide
from dsnet.routing.route import combined
from dsnet.runtime.runner import GroupedRunner, Runner
from dsnet.space import WidthPath, Window, is_exit

IMAGE, BUDGET, MAX_WIDTH, PIN = "image", "budget", "max_width", "pin"
DEFAULT, FREE = -1, -1  # the file's own budget; a width that the router chooses
BUNDLE, WEIGHTS = "manifest.json", "weights.bin"
EXIT_LOGITS = "exit_logits"  # output of a part: the answer of the early classifier
NOTHING = "nothing"  # placeholder output of a part whose outputs are not read
T = TypeVar("T")


def is_artefact(where: str | Path) -> bool:
    """Whether the path is an ONNX file or a bundle, rather than a run folder."""
    place = Path(where)
    return place.suffix == ".onnx" or (place / BUNDLE).exists()


class Session(Protocol):
    """A loaded graph, as ONNX Runtime offers it."""

    def run(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...

    def get_inputs(self) -> list[Any]: ...

    def get_outputs(self) -> list[Any]: ...

    def get_modelmeta(self) -> Any: ...


class Engine(NamedTuple):
    """What runs ONNX graphs: its name with its version, and how it opens a file with a number of threads."""

    name: str
    open: Callable[[Path, int], Session]


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
        self.session = engine.open(self.file, threads)
        self._manifest = from_metadata(self.file, self.session.get_modelmeta().custom_metadata_map)
        self.runtime = runtime_of(self._manifest, engine)
        self.place, self._threads = str(self.file), threads or cores()
        router = self._manifest.router
        budgets = router.budgets if router is not None and BUDGET in self._manifest.inputs else ()
        self._lambdas = lambdas(budgets, self._manifest.table) if budgets else None
        self._fed: tuple[Policy, dict[str, np.ndarray]] | None = None

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
        outputs = dict(zip(self.manifest.outputs, (finite(answer[:, 0]) for answer in answers), strict=True))
        return Routed(outputs, paths, madds, self._by_decision(scores[:, 0]))

    def _knobs(self, policy: Policy) -> dict[str, np.ndarray]:
        """The inputs besides the image, kept for the next call: making them takes as long as a small network."""
        fed = self._fed  # another thread may replace it
        if fed is None or fed[0] is not policy:
            self._fed = fed = policy, knobs(self.manifest, policy)
        return fed[1]

    def _computes(self, policy: Policy) -> bool:
        """Whether the file computes the policy's lambda and window itself, as its default or from the budget."""
        default, asked = self.manifest.defaults, (policy.lam, policy.window)
        known = (default.lam, default.window) if policy.share is None else self._computed_at(policy.share)
        if not self.manifest.pins and policy.max_width != default.max_width:
            raise RoutingError(
                f"{self.file} was exported with --simple, so its cap cannot be changed; export it again without "
                f"--simple, or with --max_width {policy.max_width}"
            )
        if not self.manifest.pins and asked != known:
            raise RoutingError(
                f"{self.file} was exported with --simple and takes no lambda and no window; export it again without "
                f"--simple"
            )
        return asked == known

    def _computed_at(self, budget: float) -> tuple[float, Window | None] | None:
        return None if self._lambdas is None else self._lambdas.at(budget)

    def _decided(self, image: np.ndarray, policy: Policy, prices: Prices, names: Sequence[str]) -> list[np.ndarray]:
        """Route an image at a lambda that the file does not know: decide here, by the scores that the file returns, and
        pin what it decided otherwise."""
        router, free = prices.router, (FREE,) * self.manifest.points

        def run(pin: WidthPath) -> tuple[list[np.ndarray], WidthPath, np.ndarray]:
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

        answers, path, scores = run(free)
        for _ in free:
            if (pin := decided(path, scores)) == path:
                break
            answers, path, seen = run(pin)
            scores = scores if router.probes else seen  # a pinned path is not probed
            if router.spec.exits and not is_exit(path):  # nor is its answer combined with that of the exit
                keys, (exit, _, _) = list(self.manifest.outputs), run(router.candidates[0])
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
            found = self.session.run(names, {IMAGE: contiguous(x)})
            return [dict(zip(names, map(finite, found), strict=True))] * len(paths), None
        extra = ["router_scores"] if scored and manifest.router is not None and not manifest.router.probes else []
        answers: list[Outputs] = []
        images = self._singles(x)
        for path in paths:
            rows = self._each(images, knobs(manifest, manifest.defaults, path), [*names, *extra])
            columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
            answers.append(dict(zip(names, map(finite, columns[: len(names)]), strict=True)))
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
        return [self.session.run(list(outputs), {IMAGE: image, **feed}) for image in images]


def knobs(manifest: Manifest, policy: Policy, pin: WidthPath = ()) -> dict[str, np.ndarray]:
    """The inputs of a dynamic file besides the image. Without a pinned path, the router chooses."""
    widest = max(manifest.space.widest, default=0)
    feed: dict[str, np.ndarray] = {
        BUDGET: np.array([DEFAULT if policy.share is None else policy.share], np.float32),
        MAX_WIDTH: np.array([widest if policy.max_width is None else policy.max_width], np.int64),
        PIN: np.array(pin or (FREE,) * manifest.points, np.int64),
    }
    return {name: held for name, held in feed.items() if name in manifest.inputs}


def open_bundle(folder: Path, threads: int = 0, *, engine: Engine | None = None) -> GroupedRunner:
    """Open a bundle: a folder of parts that share one file of weights, for batches."""
    try:
        about = json.loads((folder / BUNDLE).read_text())
        held = (folder / WEIGHTS).stat().st_size
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is not a bundle ({error}); make one with `dsnet export`") from error
    manifest = from_metadata(folder, about if isinstance(about, dict) else {})
    if str(held) != about.get("weights"):
        raise CheckpointError(
            f"{folder / WEIGHTS} has {held} bytes instead of {about.get('weights')}; copy the bundle again"
        )
    engine = engine or ONNX_RUNTIME
    parts = BundleParts(folder, manifest, threads, about.get("id", ""), engine)
    runner = BundleRunner(parts, runtime_of(manifest, engine))
    runner.place = str(folder)
    return runner


def runtime_of(manifest: Manifest, engine: Engine | None = None) -> str:
    """The name of the runtime that runs a file or a bundle."""
    precision = "" if manifest.precision == "fp32" else f", {manifest.precision}"
    return f"{(engine or ONNX_RUNTIME).name}, {manifest.kind}{precision}"


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
            return {name: finite(left[name]) for name in names}
        slots = [slot.name.removeprefix("in_") for slot in self._session("finish").get_inputs()]
        outputs = self._run("finish", *(left[name] for name in slots))
        return {name: finite(outputs[name]) for name in names}

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
        return dict(zip(outputs, session.run(outputs, feed), strict=True))


def open_session(file: Path, threads: int = 0) -> ort.InferenceSession:
    """Open a session whose threads stop spinning at the end of each call.

    Otherwise sessions that take turns would block each other's cores. ONNX Runtime's process-wide thread pool avoids
    that too, but it spins while idle, and every session in the process that does not use it fails.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns about files of older versions, which are refused with an error
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; give an ONNX file or a bundle that `dsnet export` wrote")
    try:
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises about a dozen classes of errors
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{file} cannot be read as an ONNX file ({reason}); export it again") from error
    give_back_memory()
    return session


def give_back_memory() -> None:
    """Return freed memory to the system. ONNX Runtime frees half of what loading takes, and glibc would keep it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


ONNX_RUNTIME = Engine(f"onnxruntime {ort.__version__}", open_session)


def call(task: Callable[[], T]) -> T:
    return task()


def contiguous(x: Any) -> np.ndarray:
    return np.ascontiguousarray(as_array(x))


def singles(x: Any) -> list[np.ndarray]:
    """The images of a batch as batches of one."""
    array = contiguous(x)
    return [array[row : row + 1] for row in range(len(array))]


def stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def finite(answer: np.ndarray) -> np.ndarray:
    if not np.isfinite(answer).all():
        raise ValueError("the network's answer is not finite; check the inputs for extremely large values")
    return answer
