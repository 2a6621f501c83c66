"""Several image sizes on the command line: settings are written as they are read, and files take photos."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsnet import open_runner
from dsnet.bench.widths import bench
from dsnet.cli import main
from dsnet.latency.files import BenchConfig
from dsnet.manifest import Policy
from dsnet.models import Supernet, count
from dsnet.pictures import as_batch
from dsnet.report.bench import bench_tables
from dsnet.results import Bench, PathRow, Stat, write
from dsnet.space import EXIT, WidthPath
from dsnet.tasks import load, save
from support.folders import make_folder
from support.pictures import snapshots
from support.results import difference, evaluation
from support.sizes import SIZES, exiting, routed

NAME = "ds_mobilenet_v1_tiny"


def rate(net: Supernet, folder: Path, best: WidthPath) -> None:
    """Write an evaluation of all settings. Those that cost less than the best one lose, the others do not."""
    table, rows = count(net), list[PathRow]()
    for path in [*net.space.exits, *net.space.uniform]:
        madds, loss = table.madds(path), 0.0 if table.madds(path) >= table.madds(best) else -0.1
        known = None if path == net.space.widest else difference(loss)
        share = madds / table.widest
        rows.append(PathRow(SIZES[path[0]], path, madds, table.params(path), share, Stat(0.9 + loss), to_full=known))
    rows.sort(key=lambda row: row.madds)
    write(replace(evaluation(), rows=tuple(rows), dynamic=None, images=2000), folder / "results" / "test.json")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The words of the command in the last line that was printed, without dsnet."""
    name, *words = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert name == "dsnet"
    return words


SETTINGS = [("20px:3", (1, 3), ((0, 1), (1, 3), (2, 5))), ("16px:exit", (0, EXIT), ((0, EXIT), (1, EXIT), (2, 5)))]


@pytest.mark.parametrize(("written", "best", "candidates"), SETTINGS)
def test_the_command_that_advice_prints_runs(
    written: str, best: WidthPath, candidates: tuple[WidthPath, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = (exiting if EXIT in best else routed)(NAME, candidates)
    place, photos = tmp_path / "my net", tmp_path / "photos"
    save(net, place)
    rate(net, place, best)
    assert main(["advise", str(place)]) == 0
    command = printed(capsys)
    assert command == ["export", str(place), "--path", written]
    assert main(command) == 0
    (file,) = place.glob("path-*.onnx")
    assert open_runner(file, threads=1).paths == [best]

    assert main(["export", str(place)]) == 0
    capsys.readouterr()
    assert main(["advise", str(place / "model.onnx")]) == 0
    command = printed(capsys)
    assert command == ["predict", str(place / "model.onnx"), "PHOTOS", "--path", written]
    photos.mkdir()
    for number, picture in enumerate(snapshots(2)):
        Image.fromarray(picture).save(photos / f"{number}.png")
    assert main([str(photos) if word == "PHOTOS" else word for word in command]) == 0
    assert capsys.readouterr().out.count(written) == 2


def test_a_benchmark_names_settings(tmp_path: Path) -> None:
    net = routed(NAME, ((0, 1), (2, 5)))
    found = bench(net, BenchConfig(runtimes=("runner",), repeats=2))
    (table,) = bench_tables(Bench("dsnet bench", widths=found))
    at = table.columns.index("<path")
    assert {row[at] for row in table.rows} == {"16px:1", "32px:5"}
    with pytest.raises(ValueError, match="path 20px:3 is not one that the router"):
        bench(net, BenchConfig(runtimes=("runner",), repeats=2, paths=("20px:3",)))


@pytest.mark.parametrize("kind", ["cheap_first", "exit_first"])
def test_a_raw_file_answers_as_the_plain_file(kind: str, tmp_path: Path) -> None:
    """It prepares a picture for the largest size, and makes that smaller as the plain file does."""
    looks = kind == "cheap_first"
    candidates = ((0, 1), (1, 3), (2, 5)) if looks else ((0, EXIT), (1, EXIT), (2, 5))
    net = (routed if looks else exiting)(NAME, candidates)
    save(net, tmp_path)
    for more in ([], ["--raw"]):
        assert main(["export", str(tmp_path), *more]) == 0
    plain, whole = (open_runner(tmp_path / f"model{kind}.onnx", threads=1) for kind in ("", "-raw"))
    assert whole.manifest.raw
    assert whole.manifest.sizes == SIZES
    pictures = snapshots(12)
    x, taken = as_batch(pictures, plain.manifest), set()
    for lam in (-1.0, 0.0, 0.2, 0.4, 1.0):
        expected, found = plain.run(x, Policy(lam)), whole.run(pictures, Policy(lam))
        assert found.paths.tolist() == expected.paths.tolist()
        assert found.madds.tolist() == expected.madds.tolist()
        assert np.allclose(found.logits, expected.logits, atol=1e-4)
        taken |= set(map(tuple, expected.paths.tolist()))
    assert len(taken) > 1
    capped = Policy(-1.0, max_size=SIZES[1])
    assert set(map(tuple, whole.run(pictures, capped).paths.tolist())) <= set(candidates[:2])
    for path in candidates:
        assert np.allclose(whole.run_path(pictures, path).logits, plain.run_path(x, path).logits, atol=1e-4)
    assert main(["export", str(tmp_path), "--raw", "--path", "32px:5"]) == 0
    alone = open_runner(tmp_path / "path-2-5-raw.onnx", threads=1)
    assert np.allclose(alone.run_path(pictures, (2, 5)).logits, plain.run_path(x, (2, 5)).logits, atol=1e-4)


def test_a_network_without_channels_to_slim_looks_small_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It becomes dynamic by its sizes alone: converted, trained in both stages, and exported."""
    words = ["slim", "support.cnns:Narrow", "--image_size", "16", "--out", str(tmp_path / "start")]
    assert main([*words, "--widths", "0.5", "1"]) == 2
    assert "give several image sizes (width 1)" in capsys.readouterr().err
    assert main([*words, "--widths", "1", "--sizes", "8", "12", "16"]) == 0
    pictures, run = make_folder(tmp_path / "pictures"), tmp_path / "run"
    short = ["--optim.steps", "4", "--optim.batch_size", "4", "--freeze", "none"]
    assert (
        main(["train", "--from", str(tmp_path / "start"), "--data.root", str(pictures), "--out", str(run), *short]) == 0
    )
    net = load(run)
    assert (net.spec.sizes, net.space.uniform) == ((8, 12, 16), [(size, 0) for size in range(3)])
    assert net.spec.router.kind == "cheap_first"
    assert net.candidates[0][0] < net.candidates[-1][0]
    assert main(["export", str(run)]) == 0
    capsys.readouterr()
    assert main(["predict", str(run / "model.onnx"), str(pictures / "val"), "--budget", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert sum(f"{size}px:0" in shown for size in (8, 12, 16)) > 0
