"""The argument parser of all commands. Its errors are one line that names the option, the value and the remedy."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from dsnet.schema import shortened, unknown_key

# Options that several commands share. A command may replace the help text of any of them.
SHARED: dict[str, dict[str, Any]] = {
    "--budget": {
        "help": "Average MAdds to spend per image, such as 150M, or a share of the widest such as 0.5 or 50%%."
    },
    "--max_width": {"help": "Largest width index that may run; 0 is the slimmest.", "type": int, "metavar": "INDEX"},
    "--max_size": {
        "help": "Largest image size that may run, in pixels, of a network that looks at several.",
        "type": int,
        "metavar": "PIXELS",
    },
    "--window": {
        "help": "Choose within this window of widths as trained, instead of a budget: S, M or L of a gate that was "
        "trained with windows, or the positions of its slimmest and widest width, such as 0:2."
    },
    "--latency": {
        "help": "Mean time to spend per image instead of a budget, such as 5ms. Needs `dsnet bench` on this machine.",
        "metavar": "TIME",
    },
    "--latency_cap": {
        "help": "Time that no image may exceed, such as 8ms: wider paths are not taken. Needs `dsnet bench` as well.",
        "metavar": "TIME",
    },
    "--runtime": {
        "help": "What runs an ONNX file or a bundle (default: onnx, that is ONNX Runtime). openvino-bf16 computes in "
        "bfloat16, which is faster than openvino, but scores and some routes differ.",
        "choices": ("onnx", "openvino", "openvino-bf16", "tensorrt"),
    },
    "--device": {
        "help": "Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.",
        "default": "auto",
        "metavar": "NAME",
    },
    "--image_size": {"help": "Height and width of the input, in pixels.", "type": int},
    "--static": {
        "help": "Evaluated runs of static networks. They are drawn in the same figures.",
        "nargs": "+",
        "default": (),
        "metavar": "RUN",
    },
    "--root": {"help": "Folder of the data, if it has moved since training.", "metavar": "FOLDER"},
    "--seed": {"help": "Taken by every command. It has no effect here.", "type": int, "default": 0},
    "--json": {"help": "Print JSON instead of text.", "action": "store_true"},
    "--export": {"help": "Also write PREFIX.json, PREFIX.md and figures, for documentation.", "metavar": "PREFIX"},
}
NUMBERS = {int: ("N", "a whole number"), float: ("X", "a number")}


# Options whose syntax is checked as soon as they are read, in any command, by these functions of `routing`.
CHECKS = {
    "budget": "budgets.read_budget",
    "budgets": "budgets.read_budget",
    "latency": "budgets.read_latency",
    "latency_cap": "budgets.read_latency",
    "window": "windows.read_window",
}


class Formatter(argparse.HelpFormatter):
    """Help text as wide as the terminal, but at most 100 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(100, shutil.get_terminal_size().columns))


class Parser(argparse.ArgumentParser):
    """The arguments of one command."""

    def __init__(self, *, helps: bool = True, **options: Any) -> None:
        plain = {"formatter_class": Formatter, "add_help": False, "allow_abbrev": False, "exit_on_error": False}
        super().__init__(**{**plain, **options})
        if helps:
            self.add_argument("-h", "--help", action="help", help="Show this help.")

    def add(self, name: str, help: str = "", **how: Any) -> None:
        """Add an argument. `type` is int or float, or omitted for text; `choices` lists the accepted words.

        If there is a default, it is appended to the help.
        """
        how = {"help": help, **how} if help else {**SHARED[name], **how}
        if (kind := how.get("type")) is not None:
            how = {"metavar": NUMBERS[kind][0], **how, "type": partial(number, kind, several="nargs" in how)}
        if (choices := how.pop("choices", None)) is not None:
            how |= {"type": partial(word, choices), "metavar": "{" + ",".join(choices) + "}"}
        if default := how.get("default"):
            how["help"] = with_default(how["help"], " ".join(map(str, default)) if "nargs" in how else default)
        self.add_argument(name, **how)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse these words. An unknown or missing argument ends the program with a message."""
        needed = [action for action in self._actions if action.required]
        for action in needed:
            action.required = False  # missing arguments are reported below, with a clearer message
        try:
            args, rest = self.parse_known_intermixed_args(words)
        except argparse.ArgumentError as error:
            self.error(f"{error.argument_name} {error.message}")
        if unknown := [word.partition("=")[0] for word in rest if word.startswith("-")]:
            self.error(unknown_key(unknown[0], self.options))
        if rest:
            self.error(f"{rest[0]!r} is one argument too many; see `{self.prog} --help`")
        missing = [action for action in needed if getattr(args, action.dest, None) in (None, [])]
        if missing:
            names = ", ".join(action.option_strings[0] if action.option_strings else action.dest for action in missing)
            self.error(f"missing: {names}; see `{self.prog} --help`")
        check(args)
        return args

    def known(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments that this parser knows, and ignore all others."""
        try:
            return self.parse_known_args(words)[0]
        except argparse.ArgumentError as error:
            self.error(f"{error.argument_name} {error.message}")

    @property
    def options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def check(args: argparse.Namespace) -> None:
    """Refuse budgets, latencies and windows that are written wrongly, before a command imports torch."""
    for name, place in CHECKS.items():
        if (given := getattr(args, name, None)) is not None:
            module, _, reader = place.partition(".")
            for text in [given] if isinstance(given, str) else given:
                getattr(import_module(f"dsnet.routing.{module}"), reader)(text)


def number(kind: type[int] | type[float], text: str, *, several: bool) -> float:
    """Convert an argument to a number."""
    try:
        return kind(text)
    except ValueError:
        hint = NUMBERS[kind][1] + (", or several of them with spaces between" if several else "")
        raise argparse.ArgumentTypeError(f"is {shortened(text)}; it must be {hint}") from None


def word(choices: Sequence[str], text: str) -> str:
    """Check that an argument is one of the choices."""
    if text not in choices:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be one of {', '.join(choices)}")
    return text


def with_default(help: str, default: object) -> str:
    """Append the default to a help text."""
    return f"{help.removesuffix('.')} (default: {default})."
