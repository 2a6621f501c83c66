"""Peaks of resident memory, measured in a process of their own.

python -m support.peak read SIZE FILES...         reads each file to SIZE pixels
python -m support.peak predict COUNTS FILES...    predicts batches of so many files, which are taken in turn

Each prints a line for every peak: megabytes above those that were resident before, and an error or nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def measured(*words: object) -> list[tuple[float, str]]:
    """What a process of its own tells: megabytes above those that it began with, and an error or nothing, by line."""
    command = [sys.executable, "-m", "support.peak", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("|", 1) for line in done.stdout.splitlines()]
    return [(float(peak), error.strip()) for peak, error in rows]


def status(key: str) -> float:
    """A figure of the system about this process, in megabytes of a million bytes."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def start() -> float:
    """Forget the peak so far. Returns what is resident."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def read(size: int, files: list[str]) -> None:
    from PIL import Image

    from dsnet.errors import DataError
    from dsnet.images import ImageFile, check_image, squeeze

    Image.init()
    for name in files:
        error, before = "", start()
        try:
            check_image(Path(name))
            squeeze(ImageFile(Path(name)), size, "bilinear")
        except DataError as problem:
            error = str(problem)
        print(f"{status('VmHWM') - before}|{error}")


def predict(counts: list[int], files: list[str]) -> None:
    from dsnet import prediction
    from dsnet.manifest import Policy
    from dsnet.models import create_model, eager

    runner = eager(create_model("ds_mobilenet_v1_tiny", num_classes=10, image_size=32).eval())

    def run(count: int) -> None:
        some = [Path(files[number % len(files)]) for number in range(count)]
        assert len(list(prediction.predict(runner, some, Policy(), path=(0,), batch_size=count))) == count

    run(max(counts))  # what the network takes comes first
    for count in counts:
        before = start()
        run(count)
        print(f"{status('VmHWM') - before}|")


if __name__ == "__main__":
    what, which, *rest = sys.argv[1:]
    if what == "read":
        read(int(which), rest)
    else:
        predict([int(count) for count in which.split(",")], rest)
