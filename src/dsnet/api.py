"""dsnet in three lines: train a network, evaluate it, and predict images with it.

Predicting with an exported file does not import torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dsnet.errors import import_heavy, must
from dsnet.manifest import Policy
from dsnet.opening import open_runner, open_timed
from dsnet.pictures import Picture, listed
from dsnet.prediction import predict as predict_pictures
from dsnet.prediction.answers import CONFIDENCE
from dsnet.results import Evaluation
from dsnet.runtime.onnx import is_artefact
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath

Place = str | os.PathLike[str]  # of a run folder, an ONNX file or a bundle


@dataclass(frozen=True)
class Run:
    """A trained run: its folder, and its evaluation on the test images. It can be given wherever a folder can.

    The evaluation is None in processes other than the first.
    """

    folder: Path
    evaluation: Evaluation | None

    def __fspath__(self) -> str:
        return str(self.folder)


def train(
    data: Place | Mapping[str, Any] | Any = None,
    model: str | Mapping[str, Any] | None = None,
    out: Place | None = None,
    *,
    source: Place | None = None,
    config: Place | Sequence[Place] = (),
    resume: Place | None = None,
    overwrite: bool = False,
    device: str = "auto",
    **options: Any,
) -> Run:
    """Train a network that chooses its width for each input, as `dsnet train` does. By default on the embedded digits.

    Args:
        data: A folder of images or shards, a CSV file of labels, the name of a dataset such as digits, the keys of the
            group `data`, a `dsnet.Datasets`, or a map-style dataset of torch, which is then split.
        model: A name from `list_models()`, or the keys of the group `model`.
        out: Folder of the run; by default a new one in runs/.
        source: Run to start from: fine-tune its network, or train its router with stage="gate".
        config: YAML files, or names of configs that come with dsnet. The other arguments override them.
        resume: Folder of a run to continue, bit for bit. It keeps its own config. "auto" continues the run in the
            folder `out` if it has begun, and begins it otherwise.
        overwrite: Delete the run that is in the folder `out`, once all checks have passed.
        device: Where to train: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        options: Keys of the config. Groups are dicts: seed=1, optim={"epochs": 30}, or **{"optim.epochs": 30}.
    """
    configs, folders = import_heavy("dsnet.runs.config"), import_heavy("dsnet.runs.folder")
    own = own_of(data)
    keys = keys_of(data if own is None else {"dataset": "python"}, model, config, options)
    if resume == "auto":
        resume = folders.begun_in(out, overwrite=overwrite)
        out, source = (None, None) if resume is not None else (out, source)
    if resume is not None:
        if out is not None or source is not None:
            raise ValueError(f"resume continues in {os.fspath(resume)} with its own source; leave out and source out")
        folder, settings = Path(resume), configs.resumed_config(Path(resume), keys)
    else:
        begun = None if source is None else os.fspath(source)
        kind = import_heavy("dsnet.tasks").named(keys.pop("task", None) or task_of(begun)).config
        recipe = None if config else configs.recipe_for(kind, begun, keys)
        settings = configs.new_config(kind, begun, keys, recipe=recipe)
        folder = folders.new_folder(settings.run_name) if out is None else Path(out)
    how: dict[str, Any] = {"resume": resume is not None, "overwrite": overwrite, "device": device}
    how |= {} if own is None else {"own": own}
    return Run(folder, import_heavy("dsnet.runs.train").train(settings, folder, **how))


def own_of(data: Any) -> Any:
    """Datasets of torch as a `Datasets`; None for data that a config names."""
    if data is None or isinstance(data, str | os.PathLike | Mapping):
        return None
    kind = import_heavy("dsnet.data.own").Datasets
    return data if isinstance(data, kind) else kind(data)


def keys_of(
    data: Place | Mapping[str, Any] | None,
    model: str | Mapping[str, Any] | None,
    config: Place | Sequence[Place],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The keys of a config as a tree, from the arguments of `train`."""
    room = import_heavy("dsnet.config")
    files = [config] if isinstance(config, str | os.PathLike) else config
    layers = [room.read_yaml(room.config_file(os.fspath(file))) for file in files]
    if data is not None:
        layers.append({"data": data_keys(data) if isinstance(data, str | os.PathLike) else data})
    if model is not None:
        layers.append({"model": {"name": model} if isinstance(model, str) else model})
    tree: dict[str, Any] = room.merged(*layers, *(room.nested({key: value}) for key, value in options.items()))
    return tree


def data_keys(data: Place) -> dict[str, str]:
    """The keys of the group `data` that a folder, shards, a CSV file of labels or the name of a dataset stands for."""
    place, name = Path(data), os.fspath(data)
    if (place / "shards.json").is_file():
        return {"dataset": "shards", "root": name}
    if place.is_dir():
        return {"root": name}
    if place.suffix == ".csv":
        return {"labels": name}
    if place.name != name:
        raise ValueError(f"{name} is not a folder; give a folder of images, a CSV file of labels or a dataset's name")
    return {"dataset": name}


def task_of(source: str | None) -> str:
    """The task of the run that another one starts from; classification without it."""
    room = import_heavy("dsnet.config")
    file = None if source is None else Path(source) / room.CONFIG
    return str((room.read_yaml(file) if file is not None and file.is_file() else {}).get("task", "classification"))


def evaluate(
    run: Place,
    *,
    budgets: Sequence[str | float] | None = None,
    split: Literal["test", "calibration", "train"] = "test",
    max_width: int | None = None,
    max_size: int | None = None,
    sample: int = 16,
    seed: int = 0,
    root: Place | None = None,
    source: Place | None = None,
    data: Any = None,
    device: str = "auto",
    **options: Any,
) -> Evaluation:
    """Evaluate every width of a run, an ONNX file or a bundle, and the dynamic network at several budgets.

    The data is that of the run. Nothing is written; `dsnet eval` also writes the result and its figures into the run.

    Args:
        budgets: Shares of the widest path such as 0.5 or "50%", or MAdds such as "150M"; by default those of the task.
        max_width: Upper limit of the width index.
        max_size: Upper limit of the image size in pixels, of a network that looks at several.
        sample: Number of random paths besides the uniform ones, for networks with several gates.
        seed: Seed of the random paths.
        root: Folder of the data, if it has moved since training.
        source: Run that an ONNX file or a bundle came from; by default the folder that it lies in.
        data: The datasets of a run that was trained on datasets of torch, as `train` was given them.
        device: Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        options: Options of the task's metric, such as rule="11point" of a detector.
    """
    place = Path(run)
    home = Path(source) if source is not None else place.resolve().parent if is_artefact(place) else place
    folder = import_heavy("dsnet.runs.folder").RunFolder.of(home)
    settings, opened = folder.opened(None if root is None else os.fspath(root), own_of(data))
    room = import_heavy("dsnet.runs.evaluate")
    asked = room.EvalOptions(split, budgets, max_width, sample, seed, options, max_size)
    runner = open_runner(place, eager=True, device=device)
    result: Evaluation = room.evaluate(runner, opened, folder.task, settings, asked)
    return result


def predict(
    images: Picture | Iterable[Picture],
    run: Place | Runner,
    *,
    budget: str | float | None = None,
    max_width: int | None = None,
    max_size: int | None = None,
    path: Sequence[int] | None = None,
    latency: str | None = None,
    latency_cap: str | None = None,
    window: str | Sequence[int] | None = None,
    confidence: float = CONFIDENCE,
    top: int = 0,
    batch_size: int = 64,
    device: str = "auto",
) -> Any:
    """Classify images or detect objects in them: one answer for one image, a list for a folder or several images.

    An answer is a `Prediction`, the class with its name and confidence, or an `ImageDetections`, the objects with their
    boxes. Both have the path taken and the MAdds spent.

    Args:
        images: Files, folders, PIL images, uint8 pixels [H, W, 3] in RGB or [H, W] in grey, or a list of them.
        run: A run folder, an ONNX file, a bundle, or a runner. Opening takes time: to predict often, give a runner
            that `open_runner` opened once.
        budget: Average share of the widest path such as 0.5 or "50%", or MAdds such as "150M".
        max_width: Upper limit of the width index.
        max_size: Upper limit of the image size in pixels, of a network that looks at several.
        path: Run this path for every image instead of routing.
        latency: Mean time to spend per image instead of a budget, such as "5ms"; images then run one at a time.
        latency_cap: Time that no image may exceed. Both times need a table that `dsnet bench` measured.
        window: Window of widths to choose within as trained, instead of a budget: "S", "M" or "L" of a gate that was
            trained with windows, or the positions of its slimmest and widest width such as (0, 2).
        confidence: Lowest confidence of detected objects.
        top: Number of the most probable classes that each answer of a classifier lists as `top`.
        batch_size: Number of images that run together.
        device: Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N or mps. A runner stays where it is.
    """
    must("batch_size", batch_size, batch_size >= 1, "be at least 1")
    pictures, single = listed(images)
    timed = latency is not None or latency_cap is not None
    runner = run if isinstance(run, Runner) else (open_timed if timed else open_runner)(Path(run), device=device)
    limits: dict[str, Any] = {"budget": budget, "max_width": max_width, "max_size": max_size, "window": window}
    limits |= {"latency": latency, "latency_cap": latency_cap}
    policy, pinned = choice(runner, path, limits)
    if policy.note:
        warnings.warn(policy.note, stacklevel=2)
    options = {"batch_size": 1 if timed else batch_size, "confidence": confidence, "top": top}
    answers = list(predict_pictures(runner, pictures, policy, path=pinned, **options))  # type: ignore[arg-type]
    return answers[0] if single else answers


def choice(runner: Runner, path: Sequence[int] | None, limits: Mapping[str, Any]) -> tuple[Policy, WidthPath | None]:
    """What to ask of a runner: the policy of these limits, or a path where one is pinned or there is no router."""
    limited = [name for name, value in limits.items() if value is not None]
    if path is not None:
        if limited:
            raise ValueError(f"a path pins the widths; leave {' and '.join(limited)} out")
        return Policy(), tuple(path)
    if runner.manifest.routes:
        return runner.policy(**limits), None
    if limited:
        raise ValueError(
            f"this {runner.manifest.model} {runner.manifest.why_fixed()}, so it has no {' or '.join(limited)}"
        )
    return Policy(), runner.paths[-1]
