"""Runs what `export_onnx` and `export_bundle` wrote, in ONNX Runtime."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor

from dsnet.checkpoint import task_in
from dsnet.cost import CostTable
from dsnet.errors import CheckpointError
from dsnet.models import Card, ModelSpec
from dsnet.routing import Policy, Prices, Routed
from dsnet.routing.route import Fork, run_grouped, run_path
from dsnet.runtime.onnx.bundle import MANIFEST, WEIGHTS
from dsnet.runtime.onnx.export import FORMAT, IMAGE
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath, WidthSpace

AnySpec = TypeVar("AnySpec")
CHUNK = 8  # images that run together: maps of more of them fall out of the processor's cache


class OnnxRunner(Runner):
    """An ONNX file or a bundle. Several threads may share it.

    kind: `dynamic` (one file, images run one by one), `static` (one path), or `bundle` (batches grouped by width).
    threads: of ONNX Runtime; by default it takes all cores.
    """

    def __init__(self, where: str | Path, *, threads: int = 0) -> None:
        super().__init__()
        self.file, self.threads = Path(where), threads
        self.session: ort.InferenceSession | None = None
        self.parts: OrtParts | None = None
        about = self._open_bundle() if self.file.is_dir() else self._open_file()
        label = read_label(self.file, about, ModelSpec.from_dict, task="classification")
        self.spec, self.card, self.kind, self._size = label.spec, label.card, label.kind, label.image_size
        self.defaults, self.pinnable = label.defaults, label.paths
        if self.file.is_dir():
            self.parts = OrtParts(self.file, self.spec, threads, about["id"])
        self.runtime = f"onnxruntime {ort.__version__}, {self.kind}"

    @property
    def image_size(self) -> int:
        return self._size

    @property
    def routes(self) -> bool:
        return self.kind != "static" and self.spec.router is not None

    @property
    def space(self) -> WidthSpace:
        return held_space(self.spec, self.kind, self.pinnable)

    @property
    def paths(self) -> Sequence[WidthPath]:
        return self.pinnable

    @property
    def table(self) -> CostTable:
        return self.prices(self.image_size).table

    def check_input(self, x: Tensor) -> None:
        super().check_input(x)
        if x.shape[2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"input is {x.shape[2]} x {x.shape[3]} pixels but {self.file} was exported for {self.image_size}; "
                f"resize it, or export again with --image_size"
            )

    def _open_file(self) -> dict[str, str]:
        self.session = open_session(self.file, self.threads)
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def _open_bundle(self) -> dict[str, str]:
        try:
            about = json.loads((self.file / MANIFEST).read_text())
            held = (self.file / WEIGHTS).stat().st_size
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.file} is not a bundle ({error}); make one with `dsnet export`") from error
        if str(held) != about.get("weights"):
            raise CheckpointError(
                f"{self.file / WEIGHTS} has {held} bytes instead of {about.get('weights')}; copy the bundle again"
            )
        return about

    def _run(self, x: Tensor, policy: Policy, prices: Prices) -> Routed:
        if self.parts is not None:
            return run_grouped(self.parts, x, policy, prices)
        columns = zip(*self._each(x, knobs(self.spec, policy, (-1,) * len(self.spec.widths))), strict=True)
        logits, paths, madds, scores = (torch.from_numpy(np.stack(rows)) for rows in columns)
        return Routed(finite(logits.flatten(1)), paths, madds, [scores.flatten(1)])

    def _run_path(self, x: Tensor, path: WidthPath) -> Tensor:
        if self.parts is not None:
            return finite(run_path(self.parts, x, path))
        if self.kind == "static":
            assert self.session is not None
            return finite(torch.from_numpy(self.session.run(["logits"], {IMAGE: as_array(x)})[0]))
        rows = self._each(x, knobs(self.spec, Policy(), path), ["logits"])
        return finite(torch.from_numpy(np.concatenate([row[0] for row in rows])))

    def _policy(self, budget: str | float | None, max_width: int | None, image_size: int | None) -> Policy:
        """What is not asked for is what the file was exported with."""
        cap = self.defaults.max_width if max_width is None else max_width
        if budget is None:
            return Policy(self.defaults.lam, cap)
        return super()._policy(budget, cap, image_size)

    def _each(self, x: Tensor, feed: dict[str, Any], outputs: list[str] | None = None) -> list[list[np.ndarray]]:
        """The outputs for every image alone."""
        assert self.session is not None
        return one_by_one(self.session, x, feed, outputs or ["logits", "path", "madds", "scores"])


class OrtParts:
    """The `Parts` of a bundle; sessions are opened when they are first needed.

    Pieces of a group run side by side, one thread each: that wastes less than several threads at one piece.
    """

    def __init__(self, folder: Path, spec: ModelSpec, threads: int, id: str) -> None:
        self.folder, self.spec, self.id = folder, spec, id
        self.threads = threads or len(
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        )
        self.pool = ThreadPoolExecutor(self.threads)
        self.sessions: dict[str, ort.InferenceSession] = {}
        self.lock = threading.Lock()

    def front(self, x: Tensor) -> Fork | Tensor:
        return self._fork("front", x)

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor | Fork:
        if point == 0:
            return fork  # the first choice has one width in: `rest` holds the whole segment
        maps = (fork.scaled,) if fork.x is None else (fork.x, fork.scaled)
        return self._run(f"first.{point}.{w_in}.{w_out}", *maps)["y"]

    def rest(self, point: int, width: int, x: Tensor | Fork) -> Fork | Tensor:
        maps = (x,) if isinstance(x, Tensor) else (x.scaled,) if x.x is None else (x.x, x.scaled)
        return self._fork(f"rest.{point}.{width}", *maps)

    def probe(self, logits: Tensor) -> Tensor:
        return self._run("probe", logits)["scores"]

    def _fork(self, name: str, *maps: Tensor) -> Fork | Tensor:
        found = self._run(name, *maps)
        return found["logits"] if "logits" in found else Fork(found.get("x"), found["scaled"], found.get("scores"))

    def _check_same(self) -> None:
        """Parts are opened one by one: a bundle that was written anew meanwhile must not be mixed with the old one."""
        try:
            same = json.loads((self.folder / MANIFEST).read_text())["id"] == self.id
        except (OSError, ValueError, KeyError):
            same = False
        if not same:
            raise CheckpointError(f"{self.folder} was removed or exported anew since it was opened; open it again")

    def _run(self, name: str, *inputs: Tensor) -> dict[str, Tensor]:
        with self.lock:
            if name not in self.sessions:
                self._check_same()
                self.sessions[name] = open_session(self.folder / f"{name}.onnx", 1)
            session = self.sessions[name]
        slots, outputs = session.get_inputs(), [slot.name for slot in session.get_outputs()]
        count = min(len(inputs[0]), max(self.threads, -(-len(inputs[0]) // CHUNK)))
        pieces = zip(*(np.array_split(as_array(x), count) for x in inputs), strict=True)
        feeds = [{slot.name: held for slot, held in zip(slots, piece, strict=True)} for piece in pieces]
        run = partial(session.run, outputs)
        found = [run(feeds[0])] if count == 1 else list(self.pool.map(run, feeds))
        whole = found[0] if len(found) == 1 else [np.concatenate(parts) for parts in zip(*found, strict=True)]
        return {key: torch.from_numpy(held) for key, held in zip(outputs, whole, strict=True)}


def open_session(file: Path, threads: int = 0) -> ort.InferenceSession:
    """A session whose threads do not spin once it has answered.

    Sessions that take turns would steal each other's cores. ONNX Runtime's process-wide pool avoids that too, but
    spins while idle, and makes every session of the process that does not use it fail.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3  # or it warns of inputs that have defaults
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; give an ONNX file or a bundle that `dsnet export` wrote")
    try:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a dozen classes for it
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{file} cannot be read as an ONNX file ({reason}); export it again") from error


@dataclass(frozen=True)
class Label(Generic[AnySpec]):
    """What a file or bundle says of itself.

    paths: those that can be pinned, the widest last. defaults: what it was exported with.
    """

    spec: AnySpec
    card: Card
    kind: str
    image_size: int
    defaults: Policy
    paths: list[WidthPath]


def read_label(
    where: Path, about: Mapping[str, str], spec_of: Callable[[Any], AnySpec], *, task: str
) -> Label[AnySpec]:
    """The metadata of a file for one task, understood; refuses what is not for it."""
    if about.get("dsnet.format") != FORMAT:
        raise CheckpointError(
            f"{where} is of format {about['dsnet.format']}, this dsnet reads {FORMAT}; export it again"
            if "dsnet.format" in about
            else f"{where} was not written by dsnet: it has no model card; make one with `dsnet export`"
        )
    try:
        spec = json.loads(about["dsnet.spec"])
        if (found := task_in({"spec": spec})) != task:
            raise CheckpointError(f"{where} holds a network for {found}, not for {task}; open it as what it is")
        card = Card.from_dict({key: json.loads(about[key]) for key in ("classes", "preprocessing", "budgets")})
        paths = [tuple(row["path"]) for row in json.loads(about["widths"])]
        defaults = Policy(**json.loads(about["defaults"]))
        return Label(spec_of(spec), card, about["dsnet.kind"], int(about["image_size"]), defaults, paths)
    except CheckpointError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{where} has a damaged model card ({error}); export it again") from error


def task_of(file: Path) -> str | None:
    """What an ONNX file of dsnet's is for; None if it is not one."""
    try:
        about = {entry.key: entry.value for entry in onnx.load(file, load_external_data=False).metadata_props}
        return task_in({"spec": json.loads(about["dsnet.spec"])})
    except Exception:  # whoever opens the file says what is wrong with it
        return None


def held_space(spec: ModelSpec, kind: str, paths: Sequence[WidthPath]) -> WidthSpace:
    """The widths that a file holds."""
    if kind == "static":
        return WidthSpace(tuple((width,) for width in paths[0]))
    return spec.space if spec.router is None else WidthSpace(spec.routing)


def knobs(spec: ModelSpec, policy: Policy, pin: WidthPath) -> dict[str, np.ndarray]:
    """All inputs beside the image; a file may have no defaults for them."""
    feed = {"pin": np.array(pin, np.int64)}
    if spec.router is not None:
        cap = max(map(max, spec.routing)) if policy.max_width is None else policy.max_width
        feed |= {"lam": np.array([policy.lam], np.float32), "max_width": np.array([cap], np.int64)}
    return feed


def one_by_one(
    session: ort.InferenceSession, x: Tensor, feed: Mapping[str, np.ndarray], outputs: Sequence[str]
) -> list[list[np.ndarray]]:
    """The outputs for every image alone."""
    return [session.run(list(outputs), {IMAGE: image, **feed}) for image in np.split(as_array(x), len(x))]


def as_array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().contiguous().numpy()


def finite(logits: Tensor) -> Tensor:
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("the network's answer is not finite; check the inputs for values out of all proportion")
    return logits
