"""What `make test` runs: lint, types and all tests that are not slow. It can be limited in CPU time.

CPU time, because a clock would also count what other programs do on the machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys

CHECKS = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
TESTS = ["pytest", "-n", "auto", "--dist", "worksteal", "-m", "not slow"]


def run(command: list[str]) -> None:
    """Run a tool of this environment; what fails ends the suite."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if code := subprocess.run([sys.executable, "-m", *command], env=environment).returncode:
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check and test everything that is not slow.")
    parser.add_argument("--cpu-minutes", type=float, help="Fail if all of it takes more CPU time than this.")
    limit = parser.parse_args().cpu_minutes
    for check in CHECKS:
        run(check)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (used.ru_utime + used.ru_stime) / 60
    print(f"lint and types: {minutes:.1f} CPU minutes", flush=True)
    run([*TESTS, *([] if limit is None else ["--cpu-minutes", f"{limit - minutes:.2f}"])])
