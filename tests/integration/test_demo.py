"""`dsnet demo`: one command from nothing to a report, and a sentence whose figures are those of the files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dsnet.advise import Advice, Demand, Option
from dsnet.cli import main
from dsnet.cli.demo import dynamic_of, sentence
from dsnet.data import cluttered, sources
from dsnet.results import Bench, BudgetRow, Difference, Evaluation, Times, read
from dsnet.space import WidthPath
from support.results import evaluation

TINY = """
model: {name: s_convnet}
data: {dataset: cluttered_digits}
optim: {steps: 4, batch_size: 64, warmup_epochs: 0}
sgs_optim: {steps: 4, batch_size: 64}
recalibration: 256
threads: 1
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few drawings of each digit."""
    monkeypatch.setattr(cluttered, "TRAIN_DRAWINGS", 1)
    monkeypatch.setattr(cluttered, "TEST_DRAWINGS", 1)
    monkeypatch.setattr(sources, "cluttered", sources.cluttered.__wrapped__)


def check_sentence(words: str, run: Path) -> tuple[Evaluation, BudgetRow, float]:
    """Compare every figure of the sentence with the files of the run.

    Returns the evaluation, the row of the sentence's budget, and its milliseconds as a share of the full network's.
    """
    result, bench = read(run / "results" / "test.json", Evaluation), read(run / "results" / "bench.json", Bench)
    wide = result.uniform[-1]
    (full,) = [row.times.mean for row in bench.deployed[0].rows if row.path == wide.path]
    assert result.dynamic is not None
    for row in result.dynamic.rows:
        (ms,) = [one.times.mean for one in bench.deployed[0].rows if one.asked == row.asked]
        written = [f"{row.score.mean:.2%}", f"{result.images:,}", f"{wide.score.mean:.2%}"]
        written += [f"{row.madds.mean / wide.madds:.0%}", f"{ms:.2f}", f"{full:.2f}"]
        if re.findall(r"[\d.,]*\d%?", words) == written:
            return result, row, ms / full
    raise AssertionError(f"{words!r} is about no budget of {run}")


@pytest.mark.usefixtures("few")
def test_one_command_trains_exports_times_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, config = tmp_path / "demo", tmp_path / "tiny.yaml"
    config.write_text(TINY)
    words = ["demo", "--config", str(config), "--out", str(out), "--repeats", "2"]
    assert main([*words, "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("$ dsnet")] == ["train", "export", "bench", "report"]
    result, _, _ = check_sentence(lines[-1], out)
    assert result.seeds == (1,)
    assert (out / "model.onnx").is_file()
    page = (out / "report.html").read_text()
    assert 'class="missing"' not in page
    assert main(words) == 2
    assert "already holds a run" in capsys.readouterr().err


def option(score: float, share: float, ms: float, *, path: WidthPath | None = None, loss: float = 0.0) -> Option:
    known = Difference(-loss, (-loss - 0.01,), (-loss + 0.01,))
    return Option("", path, share, score, 100 * share, share, known, Times(ms, ms, ms), share == 1)


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0.4, "with 30% of its MAdds and takes 0.40 ms per image instead of 1.00 ms; the milliseconds fall less"),
        (0.3, "with 30% of its MAdds and takes 0.30 ms per image instead of 1.00 ms."),
        (1.2, "with 30% of its MAdds, but it is not faster: it takes 1.20 ms per image instead of 1.00 ms, because"),
    ],
)
def test_the_sentence_says_where_milliseconds_do_not_follow(ms: float, words: str) -> None:
    slim, wide = option(0.8, 0.1, 0.1, path=(0,), loss=0.11), option(0.91, 1, 1, path=(1,))
    poor, good, dear = option(0.88, 0.2, 0.2, loss=0.03), option(0.905, 0.3, ms), option(0.92, 0.5, 0.5)
    advice = Advice(Demand(), (slim, poor, good, dear, wide), good, True, None, "ms")
    said = sentence(advice, evaluation())
    assert "classifies 90.50% of 10 test images correctly (the full network 91.00%)" in said
    assert words in said
    assert dynamic_of(advice) is good
    assert dynamic_of(replace(advice, choice=wide)) is good  # the cheapest that is as accurate as the full network
    assert dynamic_of(replace(advice, choice=wide, options=(slim, poor, wide))) is poor


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_shows_what_dynamic_width_is_for(seed: int, tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--seed", str(seed)]) == 0
    result, row, ms = check_sentence(capsys.readouterr().out.splitlines()[-1], out)
    wide = result.uniform[-1]
    assert wide.score.mean - result.uniform[0].score.mean > 0.03  # the widths differ by several points
    assert row.gain_se is not None
    assert row.gain.mean > row.gain_se
    assert row.score.mean > wide.score.mean - 0.01
    assert row.madds.mean < 0.7 * wide.madds
    assert ms < 1  # the saving is on the clock
