"""The errors of the package, and two checks: that a value is within its limits, and that a package is installed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# What the extra `train` brings and the light install leaves out, by the names under which it is imported.
TRAIN = ("torch", "safetensors", "huggingface_hub", "yaml", "jinja2", "sklearn", "matplotlib", "onnx")


class CheckpointError(ValueError):
    """A file is damaged or of the wrong kind; the message names the file and the remedy."""


class DataError(ValueError):
    """Data that cannot be used; the message names the file or folder and the remedy."""


class DamagedError(DataError):
    """An image that cannot be read, where damaged images are not skipped. `found` says which, and why."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found, remedy)  # all that a copy in another process is made from
        self.found, self.remedy = found, remedy

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}"


class NotInstalledError(ImportError):
    """A package is missing that the light install leaves out; the message has the command that installs it."""


class ResultError(ValueError):
    """A result that cannot be read; the message names the file, the field and the remedy."""


class RoutingError(ValueError):
    """The router's scores are unusable, or no route meets the request."""


class SlimError(ValueError):
    """A network that `dsnet slim` cannot convert; the message names the operation and the remedy."""


class TrainingError(ValueError):
    """Training cannot go on; the message says where it stands and what to do."""


def must(name: str, value: object, holds: bool, limit: str) -> None:
    """Raise a ValueError that names the value and the limit unless `holds`: must("lr", lr, lr > 0, "be positive")."""
    if not holds:
        raise ValueError(f"{name} is {str(value)[:200]}; it must {limit}")


def what_to_install(error: ImportError) -> str | None:
    """The sentence that explains a failed import; None if no extra of dsnet brings the package."""
    if isinstance(error, NotInstalledError):
        return str(error)
    package = (error.name or "").partition(".")[0]
    if package not in TRAIN:
        return None
    return f"this needs more than the light install of dsnet ({package} is missing); run: pip install 'dsnet[train]'"


def import_heavy(module: str) -> ModuleType:
    """Import a module of dsnet that needs more than the light install has."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (sentence := what_to_install(error)) is None:
            raise
        raise NotInstalledError(sentence, name=error.name) from error
