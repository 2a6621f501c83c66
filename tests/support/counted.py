"""Counted tests: how often a law was tried and how often it broke, as rows of docs/reliability.md.

A counted test asks for the fixture `counted` and calls it once, at its end. `pytest --counts` then keeps the counts of
the tests that passed, one file each in docs/results/reliability, and writes the table of the page anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import pytest

from dsnet.report.tables import markdown_table
from dsnet.results.base import made

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
COUNTS = ROOT / "docs" / "results" / "reliability"
MARK = "<!-- The table is written by `pytest --counts`. -->\n"
KEY = "counted"


class Counted(Protocol):
    """Fails if the law broke; otherwise the counts are kept. broken: what broke it. found: other counts, by name."""

    def __call__(self, law: str, trials: int, broken: Sequence[object] = (), **found: int) -> None: ...


class Counter:
    """Collects what counted tests found, from all processes of a session, and writes it at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.rows += [json.loads(str(row)) for key, row in report.user_properties if key == KEY]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            return  # a worker of pytest-xdist; its rows arrive in the main process
        for row in self.rows:
            keep(row)
        PAGE.write_text(page(PAGE.read_text(), stored()))


def counter_of(node: pytest.Item) -> Counted:
    """What the fixture gives to a test."""

    def counted(law: str, trials: int, broken: Sequence[object] = (), **found: int) -> None:
        assert not broken, f"{law}: broken {len(broken)} of {trials} times, first by {list(broken[:5])}"
        about = made(command=f"pytest {node.nodeid} --counts")
        row = {"law": law, "trials": trials, "broken": 0, "found": found, "made": asdict(about)}
        node.user_properties.append((KEY, json.dumps(row)))

    return counted


def keep(row: dict[str, Any]) -> None:
    COUNTS.mkdir(exist_ok=True)
    test = row["made"]["command"].split("/")[-1].removesuffix(" --counts")
    name = re.sub(r"\W+", "-", test.removeprefix("test_").replace(".py::test_", "-")).strip("-")
    (COUNTS / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")


def stored() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(COUNTS.glob("*.json"))]


def page(text: str, rows: Iterable[dict[str, Any]]) -> str:
    """The page with these rows in the place of its table, which is its end."""
    table = markdown_table(["<law", "trials", "<result", "<made by"], map(cells, rows))
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join(table) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    found = [f"{count:,} {name.replace('_', ' ')}" for name, count in row["found"].items()]
    result = "; ".join([f"broken {row['broken']:,} times", *([", ".join(found)] if found else [])])
    return [row["law"], f"{row['trials']:,}", result, f"`{row['made']['command']}`"]
