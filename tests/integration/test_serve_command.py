"""`dsnet serve` as a process of its own, and its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dsnet
from dsnet.cli import main
from support.pictures import snapshots

pytest.importorskip("starlette", reason="the extra dsnet[serve] is not installed")
pytest.importorskip("uvicorn", reason="the extra dsnet[serve] is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Gives the page a picture at several budgets, and prints what it shows. Requests to other hosts are noted.
DRIVER = """
const { chromium } = require('playwright-core');
const { browser, folder, url, picture, budgets, shot } = JSON.parse(require('fs').readFileSync(0));
const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'];
args.push('--disable-component-update', '--disable-sync');
(async () => {
  const viewport = { width: 1080, height: 820 };
  const options = { executablePath: browser, headless: true, args, viewport };
  const context = await chromium.launchPersistentContext(folder, options);
  const found = { answers: [], outside: [], errors: [] };
  const page = await context.newPage();
  page.on('request', (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(url)
    || found.outside.push(request.url()));
  page.on('pageerror', (error) => found.errors.push(String(error)));
  page.on('console', (line) => line.type() === 'error' && found.errors.push(line.text()));
  await page.goto(url);
  await page.waitForSelector('body[data-state=ready]', { timeout: 60000 });
  let runs = 0;
  const settled = async () => {
    await page.waitForFunction((before) => Number(document.body.dataset.runs ?? 0) > before, runs, { timeout: 60000 });
    runs = await page.evaluate(() => Number(document.body.dataset.runs));
  };
  await page.setInputFiles('#file', picture);
  await settled();
  for (const budget of budgets) {
    await page.locator('#budget').fill(String(budget));
    await settled();
    found.answers.push(await page.evaluate(() => ({ ...document.body.dataset,
      class: document.getElementById('class').textContent, ms: Number(document.getElementById('ms').textContent) })));
  }
  const looks = await page.evaluate(() => Number(document.body.dataset.looks));
  await page.waitForFunction((before) => Number(document.body.dataset.looks) > before, looks);
  const text = (id) => document.getElementById(id).textContent;
  found.live = await page.evaluate(() => Object.fromEntries(['load', 'rate', 'p50', 'p99', 'mean', 'mix', 'queue'].map(
    (id) => [id, document.getElementById(id).textContent])));
  if (shot) await page.screenshot({ path: shot, fullPage: true });
  await page.setInputFiles('#file', { name: 'no.png', mimeType: 'image/png', buffer: Buffer.from('nothing') });
  await page.waitForSelector('#error:not([hidden])');
  found.refused = await page.textContent('#error');
  await context.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
"""


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that runs as a command: its process and its address."""
    command = [sys.executable, "-m", "dsnet", "serve", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.match(r"(http://\S+) is ready; try: curl", line):
                    yield process, found[1]
                    return
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        finally:
            process.kill()


def asked(url: str, body: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, body, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(snapshots(1)[0]).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ["", "model.onnx", "bundle", "path-2.onnx"])
def test_every_artefact_is_served_and_ends_in_good_order(trained: Path, picture: Path, artefact: str) -> None:
    place = trained / artefact
    with serving(f"digits={place}", "--workers", 2) as (process, address):
        status, said = asked(f"{address}/predict", picture.read_bytes())
        assert status == 200
        path = said["predictions"][0]["path"]
        expected = dsnet.predict(picture, place, path=path)
        assert said["predictions"][0]["name"] == expected.name
        process.send_signal(signal.SIGTERM)
        if artefact == "bundle":
            process.send_signal(signal.SIGINT)  # a second signal does not wait
        assert process.wait(20) == (130 if artefact == "bundle" else 0)


@pytest.mark.slow
def test_a_replaced_file_is_taken_over_by_watching_and_by_signal(run: Path, picture: Path, tmp_path: Path) -> None:
    for words in (["--watch"], []):
        place = tmp_path / f"served{len(words)}.onnx"
        shutil.copy(run / "model.onnx", place)
        with serving(place, *words) as (process, address):
            name = f"{address}/v2/models/{place.stem}"
            assert asked(name)[1]["platform"] == "dsnet_dynamic"
            shutil.copy(run / "path-2.onnx", tmp_path / "new.onnx")
            (tmp_path / "new.onnx").replace(place)
            if not words:
                process.send_signal(signal.SIGHUP)
            for _ in range(600):
                assert asked(f"{address}/predict", picture.read_bytes())[0] == 200
                if asked(name)[1]["platform"] == "dsnet_static":
                    break
                time.sleep(0.05)
            assert asked(name)[1]["platform"] == "dsnet_static"


@pytest.mark.slow
def test_wrong_options_are_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("short\n")
    model = str(trained / "model.onnx")
    wrong = [
        ([str(tmp_path / "nothing.onnx")], "does not exist"),
        ([model, model], "two models are called model"),
        ([f"a b={model}"], "the model name 'a b' is not good for an address"),
        ([model, "--token_file", str(tmp_path / "token")], "5 characters; it must have at least 16"),
        ([model, "--deadline", "0"], "the limit deadline_ms is 0.0; it must be positive"),
        ([model, "--host", "300.1.2.3"], "cannot listen on 300.1.2.3"),
        ([model, "--workers", "0"], "--workers is 0"),
    ]
    for words, text in wrong:
        assert main(["serve", *words, "--port", "0"]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_the_page_answers_as_dsnet(trained: Path, picture: Path, tmp_path: Path, request: Any) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Chromium, node or npm is not installed")
    words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "playwright-core"]
    if subprocess.run(words, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("npm cannot install playwright-core")
    manifest = dsnet.open_runner(trained / "model.onnx").manifest
    assert manifest.router is not None
    budgets = [0.3, 0.5, 0.8]
    with serving(trained / "model.onnx", f"other={trained / 'bundle'}") as (_, address):
        given = {"browser": browser, "folder": str(tmp_path / "profile"), "url": address, "picture": str(picture)}
        text = json.dumps({**given, "budgets": budgets, "shot": str(tmp_path / "page.png")})
        options: dict[str, Any] = {"input": text, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run(["node", "-e", DRIVER], cwd=tmp_path, **options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["outside"], found["errors"]) == ([], [])
    assert "no.png cannot be read as a picture" in found["refused"]
    for shown, budget in zip(found["answers"], budgets, strict=True):
        answer = dsnet.predict(picture, trained / "model.onnx", budget=budget)
        assert (shown["class"], shown["path"]) == (answer.name, ",".join(map(str, answer.path)))
        assert int(shown["madds"]) == answer.madds
        assert shown["ms"] > 0
    assert "width" in found["live"]["mix"]
    assert found["live"]["p50"].endswith(" ms")
