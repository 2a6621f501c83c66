"""Write lock.txt: the exact version and the digest of every package that the extras of dsnet bring, except torch.

    python tools/lock.py

pip chooses the versions anew, within the bounds of pyproject.toml and constraints.txt. The digests are those of the
files for this interpreter and platform. torch is left out, because its builds differ: install the one that you need.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRAS = "dev,docs,openvino,coco,pretrained,ray"
LEFT_OUT = ("dsnet", "torch", "triton")
HEAD = """\
# Exact versions for {python} on {system} {machine}, written by `make lock`. torch is not among them:
#   pip install --constraint constraints.txt torch
#   pip install --require-hashes --no-deps --requirement lock.txt
#   pip install --no-deps .
"""


def resolved() -> list[dict[str, Any]]:
    """What pip would install into an empty environment."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-", "--constraint", "constraints.txt"]
    command = [sys.executable, "-m", "pip", "install", *options, f".[{EXTRAS}]"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["install"]


def line(package: dict[str, Any]) -> str:
    about, digest = package["metadata"], package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{about['name'].lower().replace('_', '-')}=={about['version']} --hash=sha256:{digest}"


def left_out(name: str) -> bool:
    """Whether a package is dsnet, torch or what only a CUDA build of torch needs."""
    return name in LEFT_OUT or name.startswith(("nvidia", "cuda"))


def main() -> None:
    kept = [one for one in resolved() if not left_out(one["metadata"]["name"].lower())]
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    head = HEAD.format(python=python, system=platform.system(), machine=platform.machine())
    (ROOT / "lock.txt").write_text(head + "\n".join(sorted(map(line, kept))) + "\n")
    print(f"lock.txt has {len(kept)} packages")


if __name__ == "__main__":
    main()
