"""The version of dsnet. This file imports nothing of dsnet, so that every other file may import it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.2.0"


@cache
def commit() -> str:
    """The commit of these sources, with a mark if they were changed since. Empty outside dsnet's own repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if (Path(git("rev-parse", "--show-toplevel")) / "src" / "dsnet" / "version.py").resolve() != Path(__file__):
            return ""
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""
