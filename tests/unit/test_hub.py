"""Models as the Hub holds them. Nothing here opens a connection."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

import dsnet
from dsnet import hub
from dsnet.checkpoint import MODEL, WEIGHTS
from dsnet.errors import CheckpointError
from dsnet.models import Budget, Supernet
from dsnet.results import Evaluation, Made, PathRow, Stat, write
from dsnet.tasks.classification.accuracy import METRIC
from support.networks import images, randomised

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def network() -> Supernet:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    net.card = replace(net.card, budgets=(Budget(2e6, 0.5, 0.71, 32), Budget(3e6, 0.1, 0.75, 32)))
    return net


def run_folder(folder: Path) -> Path:
    dsnet.save(network(), folder)
    more = {"top-5": Stat(0.98), "loss": Stat(0.8)}
    rows = (PathRow(32, (2,), 2_000_000, 100_000, 0.5, Stat(0.7123), more),)
    result = Evaluation("classification", METRIC, "x", "cifar10", "test", 10, 32, (0,), rows, Made())
    write(result, folder / "results" / "test.json")
    return folder


def assert_same(net: Supernet, other: Supernet) -> None:
    assert other.spec == net.spec
    assert other.card == net.card
    x = images(net)
    assert torch.equal(net(x, net.space.slimmest), other(x, other.space.slimmest))


def test_a_saved_network_comes_back_and_the_folder_is_an_ordinary_one(tmp_path: Path) -> None:
    net = network()
    assert dsnet.save_pretrained(net, tmp_path / "model") == tmp_path / "model"
    assert {file.name for file in (tmp_path / "model").iterdir()} == {MODEL, WEIGHTS, "README.md"}
    assert_same(net, dsnet.from_pretrained(tmp_path / "model"))
    assert_same(net, dsnet.load(tmp_path / "model"))


def test_the_card_is_written_from_the_network_and_its_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    dsnet.save_pretrained(run, tmp_path / "model", license="cc-by-4.0")
    text = (tmp_path / "model" / "README.md").read_text()
    data = huggingface_hub.ModelCard(text).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("cc-by-4.0", "dsnet", "image-classification")
    assert "slimmable-networks" in data.tags
    assert "| 2 | 2.00M | 50.0% | 100.0k | 71.23% | 98.00% | 0.800 |" in text
    assert "| 2.00M | 0.5 | 71.00% | 32 |" in text
    (tmp_path / "model" / "README.md").write_text("by hand")
    dsnet.save_pretrained(run, tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "by hand"


def test_the_python_of_the_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dsnet.save_pretrained(network(), "user/name")
    for block in re.findall(r"```python\n(.*?)```", Path("user/name/README.md").read_text(), flags=re.DOTALL):
        exec(block, {})


def test_the_cache_serves_when_there_is_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache as huggingface_hub lays it out: refs name a commit, snapshots hold its files."""
    net, cache = network(), tmp_path / "cache"
    repository = cache / "models--user--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    dsnet.save_pretrained(net, repository / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets at start
    assert_same(net, dsnet.from_pretrained("user/name", cache_dir=cache))
    assert_same(net, dsnet.from_pretrained("user/name", cache_dir=cache, revision=COMMIT))
    with pytest.raises(CheckpointError, match=r"user/other is not a folder and could not be downloaded from the Hub"):
        dsnet.from_pretrained("user/other", cache_dir=cache)
    with pytest.raises(CheckpointError, match=r"could not be downloaded from the Hub"):
        dsnet.from_pretrained("user/name", cache_dir=cache, revision="v9")


def test_downloading_asks_for_the_two_files_of_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, asked = network(), {}

    def download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(dsnet.save(net, tmp_path / "snapshot"))

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert_same(net, dsnet.from_pretrained("user/name", revision="v1", token="secret"))
    assert (asked["repo_id"], asked["revision"], asked["token"]) == ("user/name", "v1", "secret")
    assert asked["allow_patterns"] == [MODEL, WEIGHTS]


@pytest.mark.parametrize("name", ["no/such/folder", "../gone", "a//b"])
def test_names_that_cannot_be_are_refused_without_asking(name: str) -> None:
    with pytest.raises(CheckpointError, match="is neither a folder nor the name of a repository on the Hub"):
        dsnet.from_pretrained(name)


def test_pushing_uploads_the_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def __init__(self, token: str | None = None) -> None:
            assert token == "secret"

        def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> huggingface_hub.RepoUrl:
            assert (private, exist_ok) == (True, True)
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

        def upload_folder(self, repo_id: str, folder_path: Path, **options: Any) -> str:
            shutil.copytree(folder_path, tmp_path / "uploaded")
            return f"https://huggingface.co/{repo_id}/commit/{COMMIT}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    net = network()
    address = dsnet.push_to_hub(net, "user/name", license="mit", private=True, token="secret")
    assert address.endswith(COMMIT)
    assert {file.name for file in (tmp_path / "uploaded").iterdir()} == {MODEL, WEIGHTS, "README.md"}
    assert 'dsnet.from_pretrained("user/name")' in (tmp_path / "uploaded" / "README.md").read_text()
    assert_same(net, dsnet.from_pretrained(tmp_path / "uploaded"))


def test_damaged_results_and_other_things_are_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    (run / "results" / "test.json").write_text('{"rows": []}')
    with pytest.raises(CheckpointError, match=r"test.json is not a result of this version of dsnet"):
        dsnet.save_pretrained(run, tmp_path / "model")
    with pytest.raises(CheckpointError, match="is not a model folder"):
        dsnet.save_pretrained(tmp_path / "nowhere", tmp_path / "model")
    with pytest.raises(ValueError, match="only a Supernet"):
        dsnet.save_pretrained(torch.nn.Linear(1, 1), tmp_path / "model")
