"""The version, apart from everything else so that any room may read it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.2.0"


@cache
def commit() -> str:
    """The commit of these sources, marked where they differ from it; empty outside of dsnet's own repository."""

    def git(*words: str) -> str:
        asked = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if (Path(git("rev-parse", "--show-toplevel")) / "src" / "dsnet" / "version.py").resolve() != Path(__file__):
            return ""
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""
