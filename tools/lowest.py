"""Print the lowest versions that pyproject.toml admits, as constraints for pip.

    python tools/lowest.py > lowest.txt

torch is left out, because it is large: constraints.txt chooses its version. So are the tools that check the sources.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

LEFT_OUT = ("torch", "ruff", "mypy")


def lowest(project: dict[str, Any]) -> dict[str, str]:
    """The lowest version of every package that the project or one of its extras names."""
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    found = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match and match[1] not in LEFT_OUT}


if __name__ == "__main__":
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    for name, version in lowest(tomllib.loads(pyproject.read_text())["project"]).items():
        print(f"{name}=={version}")
