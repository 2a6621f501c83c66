"""The page in examples/browser gives dsnet's own answers, in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dsnet
from dsnet.cli import main
from support.pictures import snapshots

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Opens the page, gives it each picture at each budget, and prints what it shows. Requests to other hosts fail.
DRIVER = """
const { chromium } = require('playwright-core');
const { browser, folder, url, pictures, budgets } = JSON.parse(require('fs').readFileSync(0));
const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'];
args.push('--disable-component-update', '--disable-sync');
(async () => {
  const context = await chromium.launchPersistentContext(folder, { executablePath: browser, headless: true, args });
  const found = { answers: [], outside: [], errors: [] };
  const page = await context.newPage();
  page.on('request', (request) => request.url().startsWith(url) || found.outside.push(request.url()));
  page.on('pageerror', (error) => found.errors.push(String(error)));
  page.on('console', (line) => line.type() === 'error' && found.errors.push(line.text()));
  await page.goto(url);
  await page.waitForSelector('body[data-state=ready]', { timeout: 60000 });
  let runs = 0;
  const settled = async () => {
    await page.waitForFunction((before) => Number(document.body.dataset.runs ?? 0) > before, runs, { timeout: 60000 });
    runs = await page.evaluate(() => Number(document.body.dataset.runs));
  };
  for (const picture of pictures) {
    await page.setInputFiles('#file', picture);
    await settled();
    for (const budget of budgets) {
      await page.locator('#budget').fill(String(budget));
      await settled();
      found.answers.push(await page.evaluate(() => ({ ...document.body.dataset,
        class: document.getElementById('class').textContent, ms: Number(document.getElementById('ms').textContent) })));
    }
  }
  await page.setInputFiles('#file', { name: 'no.png', mimeType: 'image/png', buffer: Buffer.from('nothing') });
  await page.waitForSelector('#error:not([hidden])');
  found.refused = await page.textContent('#error');
  await context.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with what npm installs for it."""
    folder = tmp_path_factory.mktemp("browser") / "site"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "*.onnx"))
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "playwright-core"]
    if subprocess.run(words, cwd=folder, capture_output=True).returncode:
        pytest.skip("npm cannot install onnxruntime-web and playwright-core")
    return folder


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--simple"], []], ids=["simple", "all inputs"])
def test_the_page_answers_as_dsnet(run: Path, site: Path, served: str, tmp_path: Path, words: list[str]) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    assert main(["export", str(run), "--raw", *words, "--out", str(site / "model.onnx")]) == 0
    for number, pixels in enumerate(snapshots(4)):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    pictures = sorted(tmp_path.glob("*.png"))
    manifest = dsnet.open_runner(run).manifest
    assert manifest.router is not None
    lowest, *_, highest = (row.madds / manifest.table.widest for row in manifest.router.budgets)
    budgets = [round(budget, 2) for budget in (lowest + 0.01, 0.5, min(1, highest) - 0.01)]
    asked = {"browser": browser, "folder": str(tmp_path / "profile"), "url": served, "budgets": budgets}
    text = json.dumps({**asked, "pictures": [str(file) for file in pictures]})
    done = subprocess.run(["node", "-e", DRIVER], cwd=site, input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["outside"], found["errors"]) == ([], [])
    assert "no.png cannot be read as a picture" in found["refused"]
    expected = [dsnet.predict(file, run, budget=budget) for file in pictures for budget in budgets]
    for shown, answer in zip(found["answers"], expected, strict=True):
        assert shown["class"] == answer.name
        assert shown["path"] == ",".join(map(str, answer.path))
        assert int(shown["madds"]) == answer.madds
        assert shown["ms"] > 0
    assert len({shown["path"] for shown in found["answers"]}) > 1
