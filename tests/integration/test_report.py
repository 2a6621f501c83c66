"""dsnet report as a user calls it, and as a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dsnet.cli import main
from dsnet.results import (
    Bar,
    BarGroup,
    Bars,
    Chart,
    Claim,
    Dot,
    Evaluations,
    Experiment,
    Made,
    Series,
    Table,
    as_json,
    read,
    write,
)

ROOT = Path(__file__).parents[2]
EVIL = "<script>alert('1')</script>\"&"
FIGURE = Chart(
    f"a figure {EVIL}",
    "MAdds",
    "top-1 (%)",
    (Series(EVIL, (Dot(1e6, 70, 0.4), Dot(2e6, 75, 0.3))),),
    log_x=True,
)
EXPERIMENT = Experiment(
    "fig5",
    f"Figure 5 {EVIL}",
    "tiny",
    (0, 1),
    (f"A paragraph {EVIL}", "Run `dsnet eval`."),
    (Table("Gains", ("<router", "gain"), ((EVIL, "+0.1"),), "a note"),),
    tuple(Claim(f"claim {holds} {EVIL}", "+1.2", "+0.5", holds) for holds in (True, False, None)),
    (FIGURE, Bars("shares", ("w0",), (BarGroup(EVIL, (Bar("gate 0", (1.0,)),)),))),
    Made("0", "abc", "2", machine="m", command="dsnet x", seconds=3),
)


class Page(HTMLParser):
    """Tags that are opened and closed in order, what they refer to, and the text outside of styles."""

    VOID = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.refers += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def checked(file: Path) -> Page:
    """A page that stands alone and is well formed."""
    text = file.read_text()
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert len(set(page.ids)) == len(page.ids)
    for target in page.refers:
        assert target.startswith("data:image/png;base64,") or target[1:] in page.ids, target[:80]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg\")", text)
    assert "default-src 'none'" in text
    return page


def drawn(file: Path) -> dict[str, int]:
    """Marks and bars of every figure, by the figure's name."""
    found = {}
    for svg in re.findall(r"<svg .*?</svg>", file.read_text(), flags=re.DOTALL):
        root = ElementTree.fromstring(svg)
        groups = [group for group in root.iter() if group.attrib.get("class") in ("series", "part")]
        marks = [mark for group in groups for mark in group.iter() if mark.tag.endswith("}use")]
        found[root.attrib["aria-label"]] = len(marks) or len(groups)
    return found


def report(place: Path, *words: str) -> Path:
    assert main(["report", str(place), *words]) == 0
    return place / "report.html"


def test_a_whole_run_has_every_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = report(run)
    assert str(file) in capsys.readouterr().out
    page = checked(file)
    assert "Missing" not in page.text
    figures = drawn(file)
    assert (
        len(figures) == 13
    )  # accuracy, score over ms, three of routes, two confusions, two latencies, curves of two stages
    result = json.loads((run / "results" / "test.json").read_text())
    assert figures["ds_mobilenet_v1_tiny, digits test"] == 6 + 5  # widths, budgets
    assert all(figures.values())
    assert file.read_text().count('src="data:image/png') == 24
    for width in (result["rows"][0], result["rows"][-1]):
        assert f"{width['score']['mean']:.2%}" in page.text
    assert (run / "config.yaml").read_text() in page.text
    before = file.read_bytes()
    assert report(run).read_bytes() == before


def without(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def without_data(run: Path) -> None:
    """A run whose data is not the one that it began with."""
    splits = json.loads((run / "splits.json").read_text())
    (run / "splits.json").write_text(json.dumps({**splits, "fingerprint": "another"}))


def nor_sheet(run: Path) -> None:
    without_data(run)
    (run / "results" / "test-examples.png").unlink()


def changed_result(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        file = run / "results" / "test.json"
        result = json.loads(file.read_text())
        change(result)
        file.write_text(json.dumps(result))

    return apply


def older(result: dict[str, Any]) -> None:
    for example in result["examples"]:
        del example["label"], example["answer"]


MISSING = {
    "config": (without("config.yaml"), ["the config", "single images"]),
    "metrics": (without("metrics.jsonl"), ["training curves of stage I."]),
    "gate metrics": (without("gate/metrics.jsonl"), ["training curves of stage II."]),
    "bench": (without("results/bench.json"), ["latency against ideal"]),
    "data": (without_data, ["single images with their routes"]),
    "data and sheet": (nor_sheet, ["example images"]),
    "splits": (without("splits.json"), ["single images with their routes"]),
    "classes": (changed_result(lambda result: result["dynamic"].pop("classes")), ["per-class routing"]),
    "routes": (changed_result(older), ["routes of example images"]),
    "router": (changed_result(lambda result: result.pop("dynamic")), ["the dynamic network", "gate distributions"]),
    "result": (without("results/test.json"), ["accuracy against MAdds", "gate distributions", "per-class routing"]),
    "odd result": (changed_result(lambda result: result["rows"][0].pop("madds")), ["accuracy against MAdds"]),
    "old result": (changed_result(lambda result: result.update(version=2)), ["accuracy against MAdds"]),
    "odd bench": (lambda run: (run / "results/bench.json").write_text('{"widths": 3}'), ["latency against ideal"]),
    "torn result": (lambda run: (run / "results/test.json").write_text('{"rows": ['), ["accuracy against MAdds"]),
    "torn log": (lambda run: (run / "metrics.jsonl").write_text('{"epoch": 1, "lo'), ["training curves of stage I."]),
}


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The figures of a run where nothing is missing."""
    return drawn(report(Path(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run"))))


@pytest.mark.parametrize("part", MISSING)
def test_a_run_with_a_part_missing_says_so_and_shows_the_others(run: Path, part: str, whole: dict[str, int]) -> None:
    remove, words = MISSING[part]
    remove(run)
    file = report(run)
    page = checked(file)
    for word in words:
        assert f"Missing: {word}" in page.text
    left = drawn(file)
    assert set(left) <= set(whole)
    assert all(left.values())
    assert len(left) >= (12 if "data" in part or part in ("config", "routes", "splits") else 5)
    if part.startswith(("odd", "torn r", "old")):
        assert f"{run}/results/" in page.text  # the file, and what brings it
    if part in ("bench", "classes", "result", "routes", "odd result", "old result", "torn result", "odd bench"):
        assert f"dsnet {'bench' if 'bench' in part else 'eval'} {run}" in page.text


def test_a_folder_of_runs_has_an_overview(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "many"
    for seed in (0, 1):
        folder = place / f"seed{seed}" / "gate"
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("state", "*.safetensors"))
        changed_result(lambda result, seed=seed: result.update(seeds=[seed]))(folder)  # type: ignore[misc]
    result = json.loads((run / "results" / "test.json").read_text())
    static = {**result, "model": "static_one", "rows": [{**result["rows"][2], "path": []}]}
    del static["dynamic"]
    (place / "static" / "results").mkdir(parents=True)
    (place / "static" / "results" / "test.json").write_text(json.dumps(static))
    write(EXPERIMENT, place / "fig5.json")
    (place / "other.json").write_text("[1, 2]")
    (place / "empty").mkdir()
    assert (
        main(["report", str(place), "--out", str(tmp_path / "page.html"), "--markdown", str(tmp_path / "md" / "m")])
        == 0
    )
    page = checked(tmp_path / "page.html")
    assert "3 runs and 1 experiment" in page.text
    assert "seed0/gate + 1 seed" in page.text
    assert page.tags.count("article") == 1  # the experiment; overview and runs open on a click
    assert page.text.index(EXPERIMENT.title) < page.text.index("Overview of the runs")
    assert page.text.count("Gate distributions") == 2  # a static network has none
    figures = drawn(tmp_path / "page.html")
    assert figures["digits, 359 test images"] == 6 + 5 + 1
    assert figures["ds_mobilenet_v1_tiny, digits test"] == 6 + 5 + 1  # the static network beside each run
    text = (tmp_path / "md" / "m.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert len(pictures) > 20
    for name in pictures:
        with Image.open(tmp_path / "md" / name) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 20
    assert "| seed0/gate + 1 seed |" in text


def test_an_experiment_is_shown_as_it_comes_and_cannot_break_out(tmp_path: Path) -> None:
    write(EXPERIMENT, tmp_path / "fig5.json")
    page = checked(report(tmp_path, "--markdown", str(tmp_path / "readme")))
    assert page.text.count(EVIL) >= 7
    assert "a note" in page.text
    assert drawn(tmp_path / "report.html")["shares"] == 1
    for verdict in ("✓ holds", "✗ does not hold", "? no verdict"):
        assert page.text.count(verdict) == 1
    assert drawn(tmp_path / "report.html")[FIGURE.title] == 2
    assert "<script" not in (tmp_path / "readme.md").read_text()
    bare = Experiment("bare", "", "", (), (), (), (), (), Made())
    write(bare, tmp_path / "fig5.json")
    assert "bare" in checked(report(tmp_path)).text


def test_an_experiment_that_is_damaged_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {**as_json(EXPERIMENT), "tables": [{"rows": 3}]}
    (tmp_path / "fig5.json").write_text(json.dumps(content))
    assert main(["report", str(tmp_path)]) == 2
    assert "fig5.json" in capsys.readouterr().err


@pytest.mark.parametrize("which", [0, -1])
def test_a_detector(tmp_path: Path, which: int) -> None:
    result = read(ROOT / "docs" / "results" / "bccd.json", Evaluations).results[which]
    write(result, tmp_path / "results" / "test.json")
    page = checked(report(tmp_path))
    assert "Accuracy" in page.text
    assert ("Accuracy against MAdds" in page.text) == (not result.static)
    assert ("Gate distributions" in page.text) == (not result.static)  # one width has no gates to miss
    assert "Missing: gate distributions" not in page.text
    marks = len(result.rows) + (0 if result.dynamic is None else len(result.dynamic.rows))
    assert drawn(tmp_path / "report.html")[f"{result.model}, {result.dataset} test"] == marks
    (tmp_path / "results" / "test.json").unlink()
    (tmp_path / "config.yaml").write_text("task: detection\n")
    assert "Missing: accuracy against MAdds" in checked(report(tmp_path)).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["empty"], "there is no run and no experiment in empty"),
        (["run", "--out", "nowhere/page.html"], "nowhere/page.html cannot be written (No such file or"),
        (["run", "--out", "empty"], "empty cannot be written (Is a directory)"),
        (["run", "--out", "a" * 300], "cannot be written (File name too long); name another file with --out"),
        (["run", "--static", "empty"], "run `dsnet eval empty --split test` first"),
    ],
)
def test_what_cannot_be_reported_is_one_clear_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("run").mkdir()
    Path("run/config.yaml").write_text("seed: 0\n")
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
LIGHT, DARK = (0x0B, 0x5C, 0xAD), (0x6C, 0xB6, 0xFF)  # the first series, on light and on dark ground


def browsed(file: Path, *words: str) -> tuple[str, list[str], list[str]]:
    """The page as the browser has it, what its console says, and what the page, not the browser itself, asked for."""
    log = file.parent / "net.json"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]
    logged = [f"--user-data-dir={file.parent / 'profile'}", "--enable-logging=stderr", f"--log-net-log={log}"]
    command = [str(CHROMIUM), *quiet, *logged, *words, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    asked = [line for line in log.read_text().splitlines() if '"network_isolation_key":"file:' in line]
    return done.stdout, console, [url for line in asked for url in re.findall(r'"url":"(http[^"]*)"', line)]


def colours(file: Path) -> dict[tuple[int, ...], int]:
    with Image.open(file) as picture:
        return {colour: count for count, colour in picture.convert("RGB").getcolors(1 << 24)}  # type: ignore[misc]


@browser
def test_a_browser_shows_the_page_without_errors_or_requests(run: Path) -> None:
    file = report(run)
    dom, console, asked = browsed(file, "--dump-dom")
    assert console == []
    assert asked == []
    assert dom.count("<svg") == 13
    for scheme, colour, other in (("1", LIGHT, DARK), ("0", DARK, LIGHT)):
        picture = run / f"shot{scheme}.png"
        size = ["--window-size=1200,3500", f"--blink-settings=preferredColorScheme={scheme}"]
        browsed(file, *size, f"--screenshot={picture}")
        found = colours(picture)
        assert found.get(colour, 0) > 2000  # lines, marks and the widest bars
        assert found.get(other, 0) < 100


@browser
def test_the_browser_would_tell(run: Path) -> None:
    """The checks above can fail: a page that asks for something, or may not, is found out."""
    file = report(run)
    asking = file.read_text().replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">')
    file.write_text(asking)
    _, console, asked = browsed(file, "--dump-dom")
    assert "Content Security Policy" in " ".join(console)
    assert asked == []
    file.write_text(re.sub("<meta http-equiv[^>]*>", "", asking))
    assert browsed(file, "--dump-dom")[2] == ["http://127.0.0.1:9/x.png"]
