"""A parser whose errors are one line, with a suggestion where a name is close to a known one."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any, NoReturn

from jsonargparse import ArgumentParser


class Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        known = [option.removeprefix("--") for option in self._option_string_actions]
        text = re.sub(r"\s+", " ", message).strip()
        wrong = re.search(r"[Gg]roup '([\w.]+)' does not accept option '([\w.]+)'", text)
        unknown = re.search(r"unrecognized arguments: --([\w.]+)", text) or re.search(r"[Kk]ey '([\w.]+)' is not", text)
        if wrong or unknown:
            name = f"{wrong[1]}.{wrong[2]}" if wrong else unknown[1] if unknown else ""
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(close)}?" if close else f"see `{self.prog} --help`"
            text = f"{name!r} is unknown; {hint}"
        print(f"{self.prog}: error: {text}", file=sys.stderr)
        raise SystemExit(2)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)
