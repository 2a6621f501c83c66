"""The run folder: everything that a reader or a resumed run needs to know about a run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsnet.checkpoint import MODEL
from dsnet.config import CONFIG, RunConfig, flat
from dsnet.data.dataset import Data
from dsnet.data.own import Datasets
from dsnet.data.splits import SPLITS, check_data, write_splits
from dsnet.errors import CheckpointError
from dsnet.files import contents, locked, write_whole
from dsnet.results import Evaluation
from dsnet.runs.config import as_yaml
from dsnet.runs.record import record
from dsnet.tasks import GATE, STATE, Plan, Task, load, named, read_config, save
from dsnet.training.distributed import rank
from dsnet.version import __version__, commit

BENCH = "results/bench.json"
VERSIONS = "versions.json"
MARKS = (CONFIG, SPLITS, VERSIONS)  # what shows that a folder holds a run, in alphabetical order


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. It holds the network of the last stage that finished."""

    folder: Path
    task: Task

    @classmethod
    def of(cls, folder: Path) -> RunFolder:
        """A run that is there; its config says which task it is of."""
        return cls(folder, named(read_config(folder / CONFIG).task))

    def config(self) -> Any:
        return read_config(self.folder / CONFIG)

    def opened(self, root: str | None = None, own: Datasets | None = None) -> tuple[Any, Data]:
        """The config and the data of a run that is there; root: where the data lies now, own: its datasets from Python.
        It must be what it was."""
        config = self.config()
        data = self.task.open_data(config, root, own)
        self.reopen(data)
        return config, data

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, so that no other process trains into it. It is made if it does not exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
            except BlockingIOError as error:
                raise CheckpointError(
                    f"{self.folder} is in use by {error}; wait until that ends, or choose another --out"
                ) from None
            yield

    def check_free(self, config: RunConfig, *, overwrite: bool) -> None:
        """Refuse a folder that holds another run. With `overwrite`, refuse one whose content may not be deleted."""
        folder = self.folder
        if not overwrite:
            if (folder / STATE).exists() or (folder / MODEL).exists():
                raise CheckpointError(
                    f"{folder} already holds a run; continue it with --resume {folder}, delete it with --overwrite, "
                    f"or choose another --out"
                )
            return
        if not contents(folder):
            return
        if not is_run(folder):
            raise CheckpointError(
                f"{folder} holds other files than those of a run, so --overwrite does not delete them; choose "
                f"another --out"
            )
        for key, value in flat(config.to_dict()).items():
            if isinstance(value, str) and value and Path(value).resolve().is_relative_to(folder.resolve()):
                raise CheckpointError(f"--overwrite would delete {value}, which {key} reads; choose another --out")

    def claim(self, config: RunConfig, data: Data, sources: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Write the config, splits, versions and the networks that the run starts from into a folder that is held.

        overwrite: Delete the run that is in the folder first.
        """
        self.check_free(config, overwrite=overwrite)
        folder = self.folder
        if overwrite:
            empty(folder)
        versions = {
            "dsnet": __version__,
            "commit": commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        write_splits(folder, data)
        write_whole(folder / VERSIONS, json.dumps({**versions, "command": sys.argv}, indent=1).encode())
        write_whole(folder / CONFIG, as_yaml(config).encode())
        for name, net in sources.items():
            save(net, folder / name)

    def reopen(self, data: Data) -> None:
        """Go on in a folder whose data must be what it was."""
        check_data(self.folder, data)

    def change_skipping(self, config: RunConfig) -> None:
        """Write down if damaged images are skipped from now on, so that later commands do the same."""
        held: Any = self.config()
        data = replace(held.data, on_corrupt=config.data.on_corrupt, max_skipped=config.data.max_skipped)
        if data != held.data and rank() == 0:
            write_whole(self.folder / CONFIG, as_yaml(replace(held, data=data)).encode())

    def below(self, plan: Plan[Any]) -> Path:
        """Where the state and the metrics of a stage lie."""
        return self.folder / plan.name

    def begun(self, plans: Sequence[Plan[Any]]) -> bool:
        """Whether any of these stages has a state to resume from."""
        return any((self.below(plan) / STATE).exists() for plan in plans)

    def load(self) -> Any:
        return load(self.folder, self.task.name)

    def save(self, net: Any) -> None:
        save(net, self.folder)

    def record(self, name: str, result: Evaluation, data: Data, *, draw: bool = True) -> list[Path]:
        """Write a result; draw: its figures as well, which are returned."""
        return record(self.folder, name, result, data, draw=draw)


def is_run(folder: Path) -> bool:
    """Whether `dsnet train` wrote this folder. One that was killed while it began or was deleted may lack a config."""
    held = {file.name for file in contents(folder)}
    return held >= set(MARKS) or held <= set(MARKS) - {CONFIG}


def empty(folder: Path) -> None:
    """Delete the run in a folder. What shows that it is a run goes last, so that this can be killed and repeated."""
    for file in sorted(contents(folder), key=lambda file: (file.name in MARKS, file.name)):
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


def has_begun(folder: Path) -> bool:
    """Whether the folder holds a state or a network to resume from."""
    return any((folder / name).exists() for name in (STATE, f"{GATE}/{STATE}", MODEL))


def begun_in(out: str | os.PathLike[str] | None, *, overwrite: bool) -> str | None:
    """The run that --resume auto continues: that of --out, or None if there is none yet."""
    if out is None or overwrite:
        wrong = "--overwrite would delete the run that it continues" if overwrite else "it needs --out FOLDER"
        raise ValueError(f"--resume auto continues the run in the folder of --out, or begins it; {wrong}")
    return os.fspath(out) if has_begun(Path(out)) else None


def new_folder(name: str) -> Path:
    """Make a new folder of this name in runs/, with a number appended if the name is taken.

    Of several processes that ask for the same name, each gets a folder of its own.
    """
    for number in range(1, 10_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise CheckpointError(f"runs/{name} and 9,998 more are taken; delete some of them, or give --out")
