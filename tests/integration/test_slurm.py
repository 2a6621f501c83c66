"""The Slurm example begins a run, is stopped, and goes on with it, with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.runs import SHORT

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
STANDS = {
    "srun": '#!/bin/bash\nexec "$@"\n',
    "scontrol": '#!/bin/bash\necho "$@" >> "$LOG"\n[ "$1" = show ] && echo localhost || true\n',
    "torchrun": f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n',
}


def test_the_script_is_bash() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0


@pytest.mark.slow
def test_a_job_that_is_stopped_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    for name, text in STANDS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT.read_text().replace("29500", str(port)))
    out, log = tmp_path / "run", tmp_path / "log"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "OMP_NUM_THREADS": "1"}
    environment |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7"}
    environment |= {"PROCESSES": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [*SHORT, "--stage", "supernet", "--optim.epochs", "5", "--optim.batch_size", "64"]
    command = ["bash", str(script), *words, "--out", str(out)]
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert job.poll() is None, job.stdout and job.stdout.read()
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    shown, _ = job.communicate(timeout=120)
    assert job.returncode != 0
    assert log.read_text().splitlines()[-1] == "requeue 7"
    assert "state saved; continue with" in shown
    assert not (out / "results").exists()
    environment["SLURM_RESTART_COUNT"] = "1"
    again = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        shown, _ = again.communicate(timeout=500)
    finally:
        again.kill()
    assert again.returncode == 0, shown[-3000:]
    assert "resumed at step" in shown
    assert (out / "results" / "test.json").exists()
