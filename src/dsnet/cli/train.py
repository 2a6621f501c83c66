"""dsnet train: a network from a config, or a router for a network that is trained already."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnet.checkpoint import MODEL, read_description
from dsnet.cli.arguments import Parser, one_of
from dsnet.config import CONFIG, RunConfig
from dsnet.layers import config_file, from_text, merged, nested, read_run, read_yaml, resolve
from dsnet.schema import Flag, flags
from dsnet.tasks import TASKS, named

BEGUN = ("state/last.pt", "gate/state/last.pt", MODEL)
MAY_CHANGE = ("--data.root", "--data.workers", "--threads")


def add_arguments(parser: Parser) -> None:
    parser.usage = "dsnet train [--config FILE] [--from RUN] [--KEY VALUE ...]"
    parser.epilog = "`dsnet train --help-all` shows every option and every key of a config."
    parser.add_argument("--help-all", action="help", help="Show every option, by group.")
    add_places(parser)


def add_places(parser: Parser) -> None:
    """What decides which other options there are."""
    parser.add_argument(
        "--task",
        **one_of(*TASKS),
        help="What the network does. A detector has other options.",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file of the options below, or the name of a config that comes with dsnet. Options override it.",
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="RUN",
        help="Run to start from: fine-tune its network on other data, or train its router with --stage gate.",
    )
    parser.add_argument("--out", metavar="FOLDER", help="Folder of the run (default: a new one in runs/).")
    parser.add_argument("--resume", metavar="FOLDER", help="Continue the run in this folder, bit for bit.")


def add_flags(parser: Parser, words: Sequence[str]) -> None:
    """A flag for every key of the task's config; the short help shows those that people use first."""
    whole = "--help-all" in words
    places = Parser(prog=parser.prog, helps=False)
    add_places(places)
    kind = named(task_of(places.known(words))).config
    parser.set_defaults(kind=kind)
    groups: dict[str, Any] = {}
    basic = {name: place for place, name in enumerate(kind.BASIC)}
    found = flags(kind) if whole else sorted(flags(kind), key=lambda flag: basic.get(flag.name, len(basic)))
    for flag in found:
        if flag.name in ("task", "source"):  # said by --task and --from
            continue
        group = flag.name.partition(".")[0]
        if whole and flag.group and group not in groups:
            groups[group] = parser.add_argument_group(f"{group}: {flag.group.rstrip('.')}")
        groups.get(group, parser).add_argument(
            f"--{flag.name}",
            dest=flag.name,
            default=SUPPRESS,
            metavar=flag.metavar,
            help=help_of(flag) if whole or flag.basic else SUPPRESS,
        )


def help_of(flag: Flag) -> str:
    default = flag.default
    if default is None or default == "":
        return flag.help.replace("%", "%%")
    shown = str(default).lower() if isinstance(default, bool) else default
    if isinstance(default, list | tuple):
        shown = f"[{', '.join(map(str, default))}]"
    return f"{flag.help} (default: {shown})".replace("%", "%%")


def task_of(args: Namespace) -> str:
    """What --task says, or else a config file or run folder that is named."""
    runs = [Path(folder) / CONFIG for folder in (args.resume, args.from_) if folder is not None]
    for file in [*map(config_file, args.config), *filter(Path.is_file, runs)]:
        if (said := read_yaml(file).get("task")) is not None:
            if args.task not in (None, said):
                raise ValueError(f"{file} is for task {said}; leave --task {args.task} out, or give another file")
            return str(said)
    return args.task or "classification"


def run(args: Namespace) -> int | None:
    from dsnet.runs.train import train
    from dsnet.training import Interrupted

    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # torchrun --max-restarts
    resume = args.resume
    if restarted and args.out and any((Path(args.out) / name).exists() for name in BEGUN):
        resume = args.out
    if args.resume is not None and (args.out is not None or args.from_ is not None):
        raise ValueError(
            f"--resume goes on in {args.resume} with the run's own source; leave --out and --from out, or begin anew"
        )
    if resume is not None:
        folder = Path(resume)
        config = resumed(read_run(args.kind, folder / CONFIG), said(args) if resume == args.resume else {})
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and not args.out:
        raise ValueError("several processes must agree on a folder; give --out FOLDER")
    else:
        config = new_config(args)
        folder = Path(args.out) if args.out else new_folder(config.run_name)
    try:
        result = train(config, folder, resume=resume is not None)
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"dsnet train: {stop}", file=sys.stderr)
        return stop.exit_code
    if result is not None:
        from dsnet.report.tables import show_evaluation

        show_evaluation(result, sorted((folder / "results").glob("test*.png")))
        print(f"run: {folder}")
    return None


def said(args: Namespace) -> dict[str, Any]:
    """The keys that config files and flags give."""
    given = {
        flag.name: from_text(flag.type, getattr(args, flag.name))
        for flag in flags(args.kind)
        if hasattr(args, flag.name) and flag.name not in ("task", "source")
    }
    keys = merged(*(read_yaml(config_file(name)) for name in args.config), nested(given))
    return {key: value for key, value in keys.items() if key != "task"}


def new_config(args: Namespace) -> RunConfig:
    """The config of a new run: defaults, then that of the run it starts from, then files, then flags."""
    keys = said(args)
    gate = keys.get("stage") == "gate"
    if gate and args.from_ is None:
        raise ValueError("--stage gate needs --from RUN: a router needs a trained network")
    return resolve(args.kind, source_keys(args.from_, args.kind, gate=gate), keys, {"source": args.from_})


def source_keys(run: str | None, kind: type[RunConfig], *, gate: bool) -> dict[str, Any]:
    """What is taken from the run that this one starts from: all keys to train a router, else what is not about data
    and optimisation."""
    if run is None or not (Path(run) / MODEL).is_file():
        return {}
    file = Path(run) / CONFIG
    if not file.is_file():
        if gate or "model" not in kind.CARRIED:
            return {}
        return {"model": {"name": read_description(run)["spec"]["name"]}}
    keys = read_yaml(file)
    return keys if gate else {key: keys[key] for key in kind.CARRIED if key in keys}


def resumed(config: Any, keys: dict[str, Any]) -> Any:
    """The config of a run that goes on: only where its data is, and how it is run, may change."""
    given = resolve(type(config), config.to_dict(), keys)
    where = {"root": config.data.root, "workers": config.data.workers}
    if replace(given, threads=config.threads, data=replace(given.data, **where)) != config:
        raise ValueError(
            f"--resume goes on with the run's own config; besides it only {', '.join(MAY_CHANGE[:-1])} and "
            f"{MAY_CHANGE[-1]} may be given. To change anything else, start a new run"
        )
    return given


def new_folder(name: str) -> Path:
    """A folder of this name below runs/, with a number behind it if that is taken."""
    names = [name, *(f"{name}-{number}" for number in range(2, 10_000))]
    return next(folder for name in names if not (folder := Path("runs") / name).exists())
