"""dsnet train: train a network from a config, or a router for a network that is already trained."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsnet.cli.arguments import Parser, with_default
from dsnet.config import CONFIG, config_file, from_text, merged, nested, read_yaml
from dsnet.schema import flags
from dsnet.tasks import TASKS, named

AUTO = "auto"  # --resume of a job that a scheduler may start again
SAID = ("task", "source")  # keys that --task and --from give


def add_arguments(parser: Parser) -> None:
    parser.usage = "dsnet train [--config FILE] [--from RUN] [--KEY VALUE ...]"
    parser.epilog = (
        "A folder of images is trained by the recipe `folder`, with other defaults. `dsnet train --help-all` shows "
        "every option and every key of a config."
    )
    parser.add("--help-all", "Show every option, by group.", action="help")
    add_places(parser)


def add_places(parser: Parser) -> None:
    """Add the options that name files and folders. They determine the task, and thus all other options."""
    parser.add("--task", "What the network does. A detector has other options.", choices=tuple(TASKS))
    file = "YAML file of the options below, or the name of a config that comes with dsnet. Options override it."
    parser.add("--config", file, action="append", default=[], metavar="FILE")
    source = "Run whose network is fine-tuned, or gets a router."
    parser.add("--from", source, dest="from_", metavar="RUN")
    parser.add("--out", "Folder of the run (default: a new one in runs/).", metavar="FOLDER")
    parser.add("--resume", "Run to continue, bit for bit; or auto, with --out.", metavar="FOLDER")
    overwrite = "Delete the run in the folder of --out first."
    parser.add("--overwrite", overwrite, action="store_true")
    parser.add("--device")


def add_flags(parser: Parser, words: Sequence[str]) -> None:
    """Add a flag for every key of the task's config. The short help shows only the most common ones."""
    everything = "--help-all" in words
    printing = "Print the config that the options give, as YAML, and stop."
    parser.add_argument("--print_config", action="store_true", help=printing if everything else SUPPRESS)
    dry = "Take a few steps and say what the training needs: memory, MAdds, images per second, hours. Writes nothing."
    parser.add_argument("--dry_run", action="store_true", help=dry if everything else SUPPRESS)
    places = Parser(prog=parser.prog, helps=False)
    add_places(places)
    kind = named(task_of(places.known(words))).config
    parser.set_defaults(kind=kind)
    found = [flag for flag in flags(kind) if flag.name not in SAID]
    if not everything:
        found.sort(key=lambda flag: kind.BASIC.index(flag.name) if flag.basic else len(kind.BASIC))
    groups: dict[str, Any] = {}
    for flag in found:
        group = flag.name.partition(".")[0]
        if everything and flag.group and group not in groups:
            groups[group] = parser.add_argument_group(f"{group}: {flag.group.rstrip('.')}")
        text = flag.help if flag.default in (None, "") else with_default(flag.help, in_yaml(flag.default))
        groups.get(group, parser).add_argument(
            f"--{flag.name}",
            dest=flag.name,
            default=SUPPRESS,
            metavar=flag.metavar,
            help=text.replace("%", "%%") if everything or flag.basic else SUPPRESS,
        )


def in_yaml(value: object) -> str:
    """Format a default as it is written in YAML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def task_of(args: Namespace) -> str:
    """The task given by --task, or else by the config files or run folders on the command line."""
    begun = args.out if args.resume == AUTO else args.resume
    runs = [Path(folder) / CONFIG for folder in (begun, args.from_) if folder is not None]
    for file in [*map(config_file, args.config), *filter(Path.is_file, runs)]:
        if (said := read_yaml(file).get("task")) is not None:
            if args.task not in (None, said):
                raise ValueError(f"{file} is for task {said}; remove --task {args.task}, or give another file")
            return str(said)
    return args.task or "classification"


def run(args: Namespace) -> int | None:
    from dsnet.runs.config import as_yaml, new_config, recipe_for, resumed_config
    from dsnet.runs.folder import begun_in, has_begun, new_folder
    from dsnet.runs.train import train
    from dsnet.training import Interrupted

    if args.resume == AUTO:
        args.resume = begun_in(args.out, overwrite=args.overwrite)
    elif args.resume is not None and (args.out is not None or args.from_ is not None):
        raise ValueError(
            f"--resume continues in {args.resume} with the run's own source; leave --out and --from out, or start anew"
        )
    if args.overwrite and args.out is None:
        raise ValueError("--overwrite deletes the run in the folder of --out; give --out FOLDER")
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # torchrun --max-restarts
    again = args.out if restarted and args.out and has_begun(Path(args.out)) else None
    if args.dry_run and (args.resume or again):
        raise ValueError("--dry_run is for a training that has not begun; leave --resume out")
    if resume := args.resume or again:
        folder = Path(resume)
        config = resumed_config(folder, keys_of(args))
        if again and args.from_ is not None and Path(args.from_).resolve() != Path(config.source or "").resolve():
            raise ValueError(f"{args.out} holds a run that began from {config.source}; choose another --out")
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and not args.out and not args.dry_run:
        raise ValueError("several processes must agree on a folder; give --out FOLDER")
    else:
        keys = keys_of(args)
        recipe = None if args.config else recipe_for(args.kind, args.from_, keys)
        config = new_config(args.kind, args.from_, keys, recipe=recipe)
        if args.print_config:
            print(as_yaml(config), end="")
            return None
        if args.dry_run:
            show_dry_run(config, args.device)
            return None
        if recipe is not None and os.environ.get("RANK", "0") == "0":
            print(f"recipe: {recipe} (--print_config shows it, options override it, --config names another)")
        folder = Path(args.out) if args.out else new_folder(config.run_name)
    try:
        result = train(config, folder, resume=bool(resume), overwrite=args.overwrite, device=args.device)
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"dsnet train: {stop}", file=sys.stderr)
        return stop.exit_code
    if result is not None:
        from dsnet.report.advice import show_advice
        from dsnet.report.tables import show_evaluation

        show_evaluation(result, sorted((folder / "results").glob("test*.png")))
        show_advice(result, None, str(folder))
    if os.environ.get("RANK", "0") == "0":
        print(f"run: {folder}")
    return None


def show_dry_run(config: Any, device: str) -> None:
    from dsnet.runs.dry import dry_run

    lines = dry_run(config, device).lines(config.data.workers)
    if os.environ.get("RANK", "0") == "0":
        print("\n".join(lines))


def keys_of(args: Namespace) -> dict[str, Any]:
    """The keys given by config files and flags, as a tree."""
    given = {
        flag.name: from_text(flag.type, getattr(args, flag.name))
        for flag in flags(args.kind)
        if flag.name not in SAID and hasattr(args, flag.name)
    }
    keys = merged(*(read_yaml(config_file(name)) for name in args.config), nested(given))
    return {key: value for key, value in keys.items() if key != "task"}
