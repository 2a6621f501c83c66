"""The parser of the commands: errors of one line that name the option, the value and the remedy."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from dsnet.schema import unknown_key

# Options that several commands take. A command may give one of them another help.
SHARED: dict[str, dict[str, Any]] = {
    "--budget": {"help": "Average MAdds to spend per image, such as 150M, or a share of the widest such as 0.5."},
    "--max_width": {"help": "Largest width index that may run; 0 is the slimmest.", "type": int, "metavar": "INDEX"},
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


class Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal, but no wider than people read."""

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
        """An argument of a command. type: int or float, or else it is text; choices: the words that it may be.

        The help ends with the default, where there is one.
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
        """The arguments in these words; whatever is unknown or missing ends the program with a message."""
        needed = [action for action in self._actions if action.required]
        for action in needed:
            action.required = False  # this method says better what is missing
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
        return args

    def known(self, words: Sequence[str]) -> argparse.Namespace:
        """Those arguments in these words that this parser has."""
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


def number(kind: type[int] | type[float], text: str, *, several: bool) -> float:
    """A number from the command line."""
    try:
        return kind(text)
    except ValueError:
        hint = NUMBERS[kind][1] + (", or several of them with spaces between" if several else "")
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be {hint}") from None


def word(choices: Sequence[str], text: str) -> str:
    """One of these words from the command line."""
    if text not in choices:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be one of {', '.join(choices)}")
    return text


def with_default(help: str, default: object) -> str:
    """A help that ends with the default."""
    return f"{help.removesuffix('.')} (default: {default})."
