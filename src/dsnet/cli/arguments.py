"""The parser of the commands: errors of one line that name the option, the value and the remedy."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dsnet.schema import unknown_key


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


def whole(text: str) -> int:
    """A whole number from the command line."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be a whole number") from None


def several(text: str) -> int:
    """One of several whole numbers from the command line."""
    try:
        return int(text)
    except ValueError:
        hint = "a whole number, or several of them with spaces between"
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be {hint}") from None


def number(text: str) -> float:
    """A number from the command line."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be a number") from None


def one_of(*choices: str) -> dict[str, Any]:
    """The options of an argument that takes one of these words."""

    def check(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be one of {', '.join(choices)}")
        return text

    return {"type": check, "metavar": "{" + ",".join(choices) + "}"}
