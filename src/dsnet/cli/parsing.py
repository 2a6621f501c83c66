"""A parser whose errors are one line, with a suggestion where a name is close to a known one."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any, NoReturn

from jsonargparse import ArgumentParser


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
        print(f"{self.prog}: error: {text}", file=sys.stderr)
        raise SystemExit(2)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)
