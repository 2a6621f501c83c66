"""A parser whose errors are one line, with a suggestion where a name is close to a known one."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

KINDS = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "list[int]": "a list like [0, 2]",
    "list[float]": "a list like [0.5, 1]",
    "list[str]": "a list like [a, b]",
    "list[list[int]]": "a list like [[0, 1], [0]]",
    "<class 'tuple'>": "a list",
    "<class 'list'>": "a list",
    "<class 'NoneType'>": "null",
}


class Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parsers = [self, *(p for a in self._actions if isinstance(a.choices, dict) for p in a.choices.values())]
        known = [option.removeprefix("--") for parser in parsers for option in parser._option_string_actions]
        text = re.sub(r"\s+", " ", message).strip()
        unknown = re.search(r"(?:[Gg]roup '([\w.]+)' )?does not accept option '([\w.]+)'", text) or re.search(
            r"()unrecognized arguments: --([\w.]+)", text
        )
        if unknown:
            name = f"{unknown[1]}.{unknown[2]}" if unknown[1] else unknown[2]
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(close)}?" if close else f"see `{self.prog} --help`"
            text = f"{name!r} is unknown; {hint}"
        else:
            text = mistyped(text) or missing(text, self.prog) or text
        print(f"{self.prog}: error: {text}", file=sys.stderr)
        raise SystemExit(2)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)


def mistyped(text: str) -> str | None:
    """A value of the wrong kind: value, kind and remedy instead of the parser's account of types."""
    if text.startswith("Unexpected config"):
        return f"the config is {text.partition(': ')[2]!r}; it must be a YAML file of `key: value` lines"
    found = re.match(r'Parser key "([\w.]+)"( element \d+)?: (.*?)(?:Given|Got) value: (.*)$', text)
    if not found:
        return None
    key, element, told, value = found.groups()
    union = re.search(r"Subtypes: \[(.*)\] Errors", told)
    types = union[1] if union else told.removeprefix("Expected a ").strip(". ")
    literals = re.findall(r"typing.Literal\[(.*?)\]", types)
    names = [name for name in re.sub(r"typing.Literal\[.*?\]", "", types).split(", ") if name]
    if not all(name in KINDS for name in names):
        return None
    kinds = [f"one of {choices.replace(chr(39), '')}" for choices in literals] + [KINDS[name] for name in names]
    if element:
        kinds = [*(kind for kind in kinds if kind != "null"), "several of them with spaces between"]
    return f"{key} is {value!r}; it must be {' or '.join(kinds)}"


def missing(text: str, prog: str) -> str | None:
    """Positional arguments that were left out, by the names that --help shows."""
    found = re.match(r"the following arguments are required: (.*)$", text)
    if not found:
        return None
    words = [word.rpartition(".")[::2] for word in found[1].split(", ")]
    command = " ".join([prog, *dict.fromkeys(command for command, _ in words if command)])
    return f"missing: {', '.join(name for _, name in words)}; see `{command} --help`"
