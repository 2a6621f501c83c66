"""One thread per test process, runs that all tests share, and the CPU time that a session may take.

pytest-xdist uses all cores, and pools of threads would fight for them. Runs and evaluations draw no figures, except
inside of `drawing`.
"""

from __future__ import annotations

import os
import resource
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from dsnet import latency
from dsnet.report.figures import SWITCH
from support import counted as counts
from support import runs

torch.set_num_threads(1)
os.environ[SWITCH] = "off"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the session see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Latency tables stay out of the user's cache."""
    os.environ[latency.FOLDER] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="session")
def trained(shared: Path) -> Path:
    """A run on digits with router cheap_first: figures, model.onnx, bundle, path-2.onnx, bench.json."""
    return runs.made_once(shared / "trained", runs.train_digits)


@pytest.fixture
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `trained`, to write into."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("copy") / "run"))


@pytest.fixture(scope="session")
def quantised(shared: Path, trained: Path) -> Path:
    """A copy of `trained` with model-int8.onnx as well, and what its export said in said.txt."""
    return runs.made_once(shared / "quantised", partial(runs.quantise, trained))


@pytest.fixture(scope="session")
def trained_gate(shared: Path, trained: Path) -> Path:
    """The paper's gate among widths 0, 2 and 3 of `trained`."""
    return runs.made_once(shared / "trained_gate", partial(runs.train_gate, trained))


@pytest.fixture(scope="session")
def static_run(shared: Path) -> Path:
    return runs.made_once(shared / "static", runs.train_static)


@pytest.fixture(scope="session")
def detector(shared: Path) -> Path:
    """A folder with images (voc), backbones (by name) and a trained detector (run) with model.onnx and path-3.onnx."""
    return runs.made_once(shared / "detector", runs.make_detector)


@pytest.fixture(scope="session")
def reproduced(shared: Path) -> Path:
    """Some experiments at the smoke scale."""
    return runs.made_once(shared / "reproduced", runs.reproduce)


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> counts.Counted:
    """Keeps how often a law was tried, for docs/reliability.md; see tests/support/counted.py."""
    return counts.counter_of(request.node)


# CPU time: it says more than a clock, which also counts what other programs do on the machine.

CPU = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-minutes", type=float, help="Fail if the session takes more CPU time than this.")
    parser.addoption("--counts", action="store_true", help="Keep what counted tests find, for docs/reliability.md.")


def cpu_seconds() -> float:
    """What this process and the processes that it waited for took."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Gate:
    """Adds up what the processes of the session took. Workers of pytest-xdist tell it when they end."""

    def __init__(self) -> None:
        self.workers = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.workers += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = cpu_seconds()
            return
        own = resource.getrusage(resource.RUSAGE_SELF)
        used = self.workers + own.ru_utime + own.ru_stime if self.workers else cpu_seconds()
        session.config.stash[CPU] = used / 60
        limit = session.config.getoption("--cpu-minutes")
        if limit is not None and used > 60 * limit:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        used, limit = config.stash[CPU], config.getoption("--cpu-minutes")
        terminalreporter.write_line(f"{used:.1f} CPU minutes")
        if limit is not None and used > limit:
            remedy = "share a run or mark a test slow, see CONTRIBUTING.md"
            terminalreporter.write_line(f"FAILED: {limit:.1f} CPU minutes are allowed; {remedy}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Gate())
    if config.getoption("--counts"):
        config.pluginmanager.register(counts.Counter())
