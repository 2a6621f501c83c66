"""Models on the Hugging Face Hub: the two files of a model folder, and a model card written from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError

from dsnet.checkpoint import MODEL, WEIGHTS
from dsnet.errors import CheckpointError, ResultError
from dsnet.models import Supernet
from dsnet.models.count import count
from dsnet.report.tables import budgets_table, filled, human, markdown_table, paths_table, windows_table
from dsnet.results import Evaluation, read
from dsnet.routers import Budget
from dsnet.routing.windows import window_text
from dsnet.tasks import load, save

TAGS = ["dynamic-neural-networks", "slimmable-networks", "image-classification", "pytorch"]
RESULT = Path("results") / "test.json"
Model = Supernet | str | os.PathLike[str]  # a network, or its folder


def from_pretrained(name: str | os.PathLike[str], *, device: torch.device | str = "cpu", **options: Any) -> Supernet:
    """Load a network from a folder or from a repository of the Hub (`user/name`), in eval mode.

    options: revision, cache_dir, token, local_files_only, as in huggingface_hub. With HF_HUB_OFFLINE=1 or
    `local_files_only` only files that were downloaded before are read.
    """
    if Path(name).is_dir():
        return load(name, "classification", device=device)
    try:
        folder = snapshot_download(str(name), allow_patterns=[MODEL, WEIGHTS], **options)
    except HFValidationError:
        raise CheckpointError(
            f"{name} is neither a folder nor the name of a repository on the Hub, which is written user/name"
        ) from None
    except (OSError, EntryNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{name} is not a folder and could not be downloaded from the Hub ({type(error).__name__}: {reason}); "
            f"check its name and revision, or download it while there is a connection"
        ) from error
    return load(folder, "classification", device=device)


def save_pretrained(model: Model, folder: str | os.PathLike[str], *, license: str = "unknown") -> Path:
    """Write a network, and a README.md if there is none yet. Given a run's folder, the README.md has its accuracy."""
    _Published(model, license).save_pretrained(Path(folder))
    return Path(folder)


def push_to_hub(model: Model, repo_id: str, *, license: str = "unknown", **options: Any) -> str:
    """Upload the files that `save_pretrained` writes. Returns the address of the commit.

    options: private, token, branch, create_pr, commit_message, as in huggingface_hub.
    """
    return _Published(model, license, repo_id).push_to_hub(repo_id, **options)


class _Published(ModelHubMixin):
    """Adapts a network to huggingface_hub's mixin, so that the network itself does not depend on the Hub."""

    def __init__(self, model: Model, license: str, repo_id: str | None = None) -> None:
        model = getattr(model, "_orig_mod", model)  # unwrap torch.compile
        run = model if isinstance(model, str | os.PathLike) else None
        if run is None and getattr(model, "spec", None) is None:
            raise ValueError(f"only a Supernet can be published, not a {type(model).__name__}; give it or a run folder")
        self.net: Any = model if run is None else load(run, "classification")
        self.result = None if run is None else read_result(Path(run) / RESULT)
        self.license, self.repo_id = license, repo_id
        self._hub_mixin_config = None  # model.json replaces config.json

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self.net, save_directory)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        return ModelCard(model_card(self.net, self.result, license=self.license, repo_id=self.repo_id))


def read_result(file: Path) -> Evaluation | None:
    """The evaluation that a run wrote, or None if there is none."""
    try:
        return read(file, Evaluation) if file.is_file() else None
    except ResultError as error:
        raise CheckpointError(f"{file} is not a result of this version of dsnet ({error})") from error


def model_card(
    net: Supernet, result: Evaluation | None = None, *, license: str = "unknown", repo_id: str | None = None
) -> str:
    """A README.md for the Hub, with a description of the network, its accuracy and cost, and how to use it."""
    spec, table, preprocessing, points = net.spec, count(net), net.card.preprocessing, len(net.spec.widths)
    data = ModelCardData(license=license, library_name="dsnet", pipeline_tag="image-classification", tags=TAGS)
    what = f"{spec.space.size} paths over {points} choice point{'s' * (points > 1)}" if points else "one static path"
    return CARD.format(
        data=data.to_yaml(),
        title=repo_id or spec.name,
        name=spec.name,
        what=what,
        cost=f"{human(table.slimmest)} to {human(table.widest)}",
        size=spec.image_size,
        classes=spec.num_classes,
        tables="".join(f"{line}\n" for line in tables(net, result)),
        repo=repo_id or "user/name",
        shape=f"1, {spec.in_channels}, {spec.image_size}, {spec.image_size}",
        routed=ROUTED if net.card.budgets and spec.router is not None else "",
        fit=f"{spec.image_size} / {preprocessing.crop:g} pixels on the short side ({preprocessing.interpolation})",
        norm=f"mean {list(preprocessing.mean)} and standard deviation {list(preprocessing.std)}",
    )


def tables(net: Supernet, result: Evaluation | None) -> list[str]:
    """The tables of the model card: accuracy and budgets."""
    lines: list[str] = []
    if result is not None:
        paths, routed = paths_table(result), [budgets_table(result), windows_table(result)]
        lines += ["## Accuracy", "", f"{paths.title}.", "", *markdown_table(paths.columns, paths.rows), ""]
        for table in routed:
            if table is not None:
                lines += [f"{table.title.capitalize()}.", ""]
                lines += [*markdown_table(table.columns, table.rows), "", table.note, ""]
    if net.card.budgets:
        columns: dict[str, Callable[[Budget], str]] = {
            "MAdds": lambda row: human(row.madds),
            "lambda": lambda row: f"{row.lam:.4g}",
            "window": lambda row: window_text(row.window),
            "accuracy": lambda row: f"{row.accuracy:.2%}",
            "pixels": lambda row: str(row.image_size),
        }
        if all(row.window is None for row in net.card.budgets):
            del columns["window"]
        budgets = filled("", net.card.budgets, columns)
        lines += [
            "## Budgets",
            "",
            "Average MAdds for which the router is calibrated, and accuracy on the calibration images.",
            "",
        ]
        lines += [*markdown_table(budgets.columns, budgets.rows), ""]
    return lines


ROUTED = "routed = dsnet.DynamicRunner(net)(images, budget=0.5)\n"
CARD = """---
{data}
---

# {title}

`{name}`, a network of dsnet: {what}, {cost} MAdds at {size} px, {classes} classes.

{tables}## Use

```python
import torch

import dsnet

net = dsnet.from_pretrained("{repo}")
images = torch.randn({shape})
logits = net(images, net.space.widest)
{routed}```

```
hf download {repo} --local-dir model
dsnet info model
dsnet predict model photos
```

Images are resized to {fit}, centre cropped, scaled to 0..1 and normalised with {norm}.
"""
