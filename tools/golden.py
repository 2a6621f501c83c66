"""Check that a refactoring keeps all numbers bit for bit: seeded trainings, routes, outputs and evaluations.

    python tools/golden.py record FILE    trains small runs with these sources and writes their digests
    python tools/golden.py check FILE     trains them again and compares the digests

Record on the parent commit, then check on the child, on the same machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
COMMON = [
    "--threads",
    "1",
    "--seed",
    "3",
    "--optim.epochs",
    "2",
    "--optim.batch_size",
    "128",
    "--optim.warmup_epochs",
    "0",
]
ROUTER = ["--sgs_optim.epochs", "2", "--sgs_optim.batch_size", "128"]
DETECTION = ["--task", "detection", "--threads", "1", "--seed", "3", "--projection", "16", "--pyramid", "16"]
DETECTION += [
    "--data.calibration",
    "[val]",
    "--data.image_size",
    "64",
    "--optim.epochs",
    "2",
    "--optim.batch_size",
    "4",
]
DETECTION += ["--optim.warmup_epochs", "0", "--gates_optim.epochs", "2", "--gates_optim.batch_size", "4"]
CROPS = [
    "--data.dataset",
    "folder",
    "--data.root",
    "data/digits",
    "--data.image_size",
    "32",
    "--optim.batch_size",
    "32",
]
RUNS: dict[str, list[str]] = {
    "both": [*COMMON, *ROUTER],
    "group_norm": [*COMMON, *ROUTER, "--model.name", "ds_resnet_tiny", "--stage", "supernet"],
    "try_best": ["--stage", "gate", "--from", "both", "--sgs.router", "gate", *ROUTER],
    "threshold": ["--stage", "gate", "--from", "both", "--sgs.router", "threshold"],
    "gates": [
        "--stage",
        "gate",
        "--from",
        "group_norm",
        "--sgs.router",
        "gate",
        "--sgs.targets",
        "correctness",
        *ROUTER,
    ],
    "moved": [
        *("--from", "try_best", "--gate_from", "try_best", "--sgs.router", "gate", "--sgs.targets", "try_best"),
        *("--data.image_size", "20"),
        *COMMON,
        *ROUTER,
    ],
    "backbone": [*COMMON, *ROUTER, *CROPS, "--model.name", "ds_mobilenet_v1_small", "--sgs.router", "gate"],
    "detector": [*DETECTION, "--backbone", "backbone", "--data.root", "data/digits-voc", "--gates.targets", "try_best"],
    "frozen": [*DETECTION, "--backbone", "backbone", "--data.root", "data/digits-voc", "--gates.router", "frozen"],
}
ARTEFACTS = {
    "both/model.onnx": ["both"],
    "both/bundle": ["both", "--bundle"],
    "both/path-2.onnx": ["both", "--path", "2"],
    "gates/model.onnx": ["gates"],
    "gates/bundle": ["gates", "--bundle"],
    "detector/model.onnx": ["detector"],
}
IMAGES = "data/digits/val"
BUDGETS = ("0.4", "0.6", "0.8")
ROUNDED = {"confidence", "box"}  # computed from a network's output, so their last digits may differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in; by default they are deleted")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = observed(args.keep or Path(scratch))
    if args.action == "record":
        args.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"recorded {len(found)} values")
        return 0
    known = json.loads(args.file.read_text())
    wrong = [key for key in sorted({*known, *found}) if known.get(key) != found.get(key)]
    for key in wrong:
        print(f"differs: {key}\n  was {shortened(known.get(key))}\n  is  {shortened(found.get(key))}")
    print(f"{len(known) - len(wrong)} of {len(known)} values are the same, bit for bit")
    return 1 if wrong else 0


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 300 else text[:300] + "..."


def observed(place: Path) -> dict[str, Any]:
    """Train all runs. Returns digests and figures by name."""
    place.mkdir(parents=True, exist_ok=True)
    run_python(
        place, "from pathlib import Path; from dsnet.experiments.digits import write_digits; write_digits(Path('data'))"
    )
    found: dict[str, Any] = {}
    for name, options in RUNS.items():
        dsnet(place, "train", *options, "--out", name)
        found |= {f"{name}/{key}": value for key, value in of_run(place / name).items()}
    for artefact, words in ARTEFACTS.items():
        dsnet(place, "export", *words)
        for budget in BUDGETS if "path" not in artefact else (None,):
            found[f"{artefact} at {budget}"] = predicted(place, artefact, budget)
    for name in ("both", "try_best", "threshold", "gates", "detector", "frozen"):
        for budget in BUDGETS:
            found[f"{name} at {budget}"] = predicted(place, name, budget)
    return found


def of_run(folder: Path) -> dict[str, Any]:
    """Digests and figures of a run: weights, training states, losses, budgets and evaluation."""
    found: dict[str, Any] = {"weights": digest((folder / "model.safetensors").read_bytes())}
    for part in (folder, folder / "gate"):
        if (part / "state" / "last.pt").is_file():
            found[f"{part.name} state"] = state_digest(part / "state" / "last.pt")
            lines = [json.loads(line) for line in (part / "metrics.jsonl").read_text().splitlines()]
            found[f"{part.name} losses"] = [
                {key: value for key, value in line.items() if key != "images_per_second"} for line in lines
            ]
    card = json.loads((folder / "model.json").read_text())["card"]
    found["budgets"] = [[row["madds"], row["lam"], row["accuracy"]] for row in card["budgets"]]
    result = json.loads((folder / "results" / "test.json").read_text())
    found["evaluation"] = figures_of(result)
    return found


def figures_of(result: dict[str, Any]) -> list[Any]:
    """(MAdds, score) of every path and budget, under the names of any version of the schema."""
    rows = [[row["madds"], score_of(row)] for row in result["rows"]]
    dynamic = result.get("dynamic") or []
    budgets = dynamic if isinstance(dynamic, list) else dynamic["rows"]
    return sorted(rows) + [[plain(row["madds"]), score_of(row)] for row in budgets]


def score_of(row: dict[str, Any]) -> float:
    return float(plain(next(row[key] for key in ("score", "top1", "map") if key in row)))


def plain(value: Any) -> float:
    """A figure itself, or its mean if there are several seeds."""
    return value["mean"] if isinstance(value, dict) else value


def predicted(place: Path, what: str, budget: str | None) -> str:
    """A digest of the predictions and routes of all images."""
    options = ["--budget", budget] if budget else []
    return digest(
        json.dumps(
            rounded(json.loads(dsnet(place, "predict", what, IMAGES, *options, "--json"))), sort_keys=True
        ).encode()
    )


def rounded(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: rounded(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, key) for part in value]
    return round(value, 4) if key in ROUNDED and isinstance(value, float) and math.isfinite(value) else value


def state_digest(file: Path) -> str:
    """A digest of the tensors in a training state, without its other content."""
    program = """
import hashlib, io, sys, torch
data = open(sys.argv[1], 'rb').read()
state = torch.load(io.BytesIO(data[data.index(b'\\n') + 33:]), weights_only=True)
found = hashlib.sha256()
for part in ('net', 'ema'):
    for name, tensor in state[part].items():
        found.update(name.encode()); found.update(tensor.contiguous().numpy().tobytes())
for number, entry in state['optimizer']['state'].items():
    for name in sorted(entry):  # momentum of SGD, moments and step of AdamW
        found.update(entry[name].contiguous().numpy().tobytes())
found.update(state['random']['torch'].numpy().tobytes())
print(found.hexdigest())
"""
    return run_python(file.parent, program, str(file)).strip()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def dsnet(place: Path, *words: str) -> str:
    return run_python(place, "import sys; from dsnet.cli import main; sys.exit(main())", *words)


def run_python(place: Path, program: str, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(HERE / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=place, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
