"""dsnet train: a dynamic network from a config, or a router for a supernet that is trained already."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import yaml
from jsonargparse import ArgumentParser, Namespace

from dsnet.checkpoint import MODEL, read_description
from dsnet.config import CONFIG, TrainConfig, add_config, config_of, read_config


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = (
        "dsnet train [--config FILE] [[--stage gate] --from RUN] [--out FOLDER | --resume FOLDER] [--KEY VALUE ...]"
    )
    parser.add_argument(
        "--task",
        choices=["classification", "detection"],
        default="classification",
        help="detection builds a detector on a classification run; its keys: `dsnet train --task detection --help`",
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="folder of the run; by default a new one below runs/"
    )
    parser.add_argument("--resume", type=str | None, default=None, help="continue the run in this folder, bit for bit")
    parser.add_argument(
        "--from",
        type=str | None,
        default=None,
        help="the run whose supernet is fine-tuned on the data given here; with --stage gate it gets a router for the "
        "run's own data, and this run starts from its whole config",
    )
    add_config(parser)


def expand(words: list[str]) -> list[str]:
    """--from RUN also reads the config of that run, before any other option: all of it to train a router, else what is
    not about data and optimisation."""
    folder = Path(value_of(words, "--from") or "")
    if value_of(words, "--from") is None or not (folder / MODEL).is_file():
        return words
    place = words.index("train") + 1
    whole = folder / CONFIG
    if stage_of(words) == "gate":
        return [*words[:place], "--config", str(whole), *words[place:]] if whole.is_file() else words
    kept = {"model": {"name": read_description(folder)["spec"]["name"]}}
    if whole.is_file():
        kept = {key: part for key, part in yaml.safe_load(whole.read_text()).items() if key in ("model", "ieb", "sgs")}
    return [*words[:place], "--config", json.dumps(kept), *words[place:]]


def stage_of(words: list[str]) -> str | None:
    """What --stage says, or else the config file that is given."""
    file = Path(value_of(words, "--config") or "")
    if (said := value_of(words, "--stage")) is not None or not file.is_file():
        return said
    content = yaml.safe_load(file.read_text())
    return content.get("stage") if isinstance(content, dict) else None


def value_of(words: list[str], option: str) -> str | None:
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else words[number + 1] if number + 1 < len(words) else None
    return None


def run(args: Namespace, parser: ArgumentParser) -> int | None:
    from dsnet.runs.train import train
    from dsnet.training import Interrupted

    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # torchrun --max-restarts
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    resume = args.resume
    begun = ("state/last.pt", "gate/state/last.pt", "model.json")
    if restarted and args.out and any((Path(args.out) / name).exists() for name in begun):
        resume = args.out
    if args.resume is not None and (args.out is not None or args["from"] is not None):
        raise ValueError(
            f"--resume goes on in {args.resume} with the run's own source; leave --out and --from out, or begin anew"
        )
    if resume is not None:
        folder = Path(resume)
        config = resumed(read_config(folder / CONFIG), config_of(parser, args) if resume == args.resume else None)
    elif many and not args.out:
        raise ValueError("several processes must agree on a folder; give --out FOLDER")
    else:
        config = config_of(parser, args)
        source = args["from"]
        if config.stage == "gate" and source is None:
            raise ValueError("--stage gate needs --from RUN: a router needs a trained supernet")
        config = replace(config, source=source)
        folder = Path(args.out) if args.out else new_folder(config)
    try:
        result = train(config, folder, resume=resume is not None)
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"dsnet train: {stop}", file=sys.stderr)
        return stop.exit_code
    if result:
        from dsnet.report.show import show_result

        show_result(result, sorted((folder / "results").glob("test*.png")))
        print(f"run: {folder}")
    return None


def resumed(config: TrainConfig, given: TrainConfig | None) -> TrainConfig:
    """The config of a run that goes on: only where its data is, and how it is run, may change."""
    if given is None or given == TrainConfig():
        return config
    where = {key: getattr(given.data, key) for key in ("root", "workers") if getattr(given.data, key)}
    if given != replace(TrainConfig(), threads=given.threads, data=replace(TrainConfig().data, **where)):
        raise ValueError(
            "--resume goes on with the run's own config; besides it only --data.root, --data.workers and --threads "
            "may be given. To change anything else, start a new run"
        )
    return replace(config, threads=given.threads or config.threads, data=replace(config.data, **where))


def new_folder(config: TrainConfig) -> Path:
    """runs/MODEL-DATASET-seedN, with a number behind it if that is taken."""
    stem = f"{config.model.name}-{config.data.dataset}-seed{config.seed}"
    if config.source is not None and config.stage != "gate":
        stem += f"-from-{Path(config.source).name}"
    if config.stage == "gate":
        stem += f"-{config.sgs.router}-{config.sgs.spec.targets}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(folder for name in names if not (folder := Path("runs") / name).exists())
