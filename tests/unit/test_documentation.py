"""The pages of the documentation fit together: links lead somewhere, and the reference covers the public names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dsnet
from dsnet.advise import advise
from dsnet.results import Bench, Evaluation, read
from support import counted as counts

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


def test_the_reference_covers_the_public_names() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    listed = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)", text, flags=re.MULTILINE)}
    assert set(dsnet.__all__) - {"__version__"} <= listed


def test_the_headline_is_what_was_measured() -> None:
    """The README's figures are those of the demo's results."""
    results = ROOT / "docs" / "results"
    result, bench = read(results / "demo.json", Evaluation), read(results / "bench_demo.json", Bench)
    advice = advise(result)
    assert advice is not None
    assert advice.choice is not None
    dynamic, full = advice.choice, advice.full
    assert dynamic.to_full is not None
    assert (dynamic.path, dynamic.to_full.sign, len(result.seeds)) == (None, 0, 3)
    assert result.dynamic is not None
    asked = next(row.asked for row in result.dynamic.rows if row.score.mean == dynamic.score)
    rows = bench.deployed[0].rows
    times = next(row.times.mean for row in rows if row.asked is not None and abs(row.asked / asked - 1) < 0.01)
    share = times / next(row.times.mean for row in rows if row.path == full.path)
    text = " ".join((ROOT / "README.md").read_text().split())
    low, high = dynamic.to_full.interval
    assert (
        f"classifies {100 * dynamic.score:.2f} % correctly where its full network has {100 * full.score:.2f} %" in text
    )
    assert f"with {100 * dynamic.share:.0f} % of its MAdds and {100 * share:.0f} % of its milliseconds" in text
    assert f"the difference, {100 * low:+.2f} to {100 * high:+.2f} points" in text


def test_the_table_of_alternatives_is_what_was_measured() -> None:
    rows = re.findall(r"^\| (?:network|dynamic|supernet|MobileNet) .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "results" / "paper" / "alternatives.md").read_text().splitlines()
    assert len(rows) > 5
    assert set(rows) <= set(page)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")
    assert shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "index.html").read_text()
    assert all(f'id="dsnet.{name}' in page for name in ("models.create_model", "opening.open_runner"))


def test_the_table_of_reliability_is_what_was_counted() -> None:
    rows = counts.stored()
    text = counts.PAGE.read_text()
    assert text == counts.page(text, rows), "run pytest --counts with any test"
    for row in rows:
        file, _, test = row["made"]["command"].split()[1].partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), test


def test_counts_break_loudly_and_render(request: pytest.FixtureRequest) -> None:
    counted = counts.counter_of(request.node)
    with pytest.raises(AssertionError, match="broken 2 of 9 times, first by \\['a', 'b'\\]"):
        counted("it holds", 9, ["a", "b"])
    assert not request.node.user_properties
    counted("it holds", 1200, [], kept_whole=1000)
    ((_, row),) = request.node.user_properties
    shown = counts.page(f"before\n{counts.MARK}| stale |", [json.loads(str(row))])
    assert "| it holds | 1,200 | broken 0 times; 1,000 kept whole | `pytest tests/unit/" in shown
    assert "stale" not in shown
    assert shown.startswith("before\n")
    request.node.user_properties.clear()  # this test is not counted
