"""The `dsnet` command. One file per command; what is heavy to import is imported by the command that needs it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

COMMANDS = {
    "train": "Train a network that chooses its width for each input; without options, on the embedded digits.",
    "eval": "Evaluate a trained model: every width, and the dynamic network at several budgets.",
    "predict": "Classify images: class, confidence, the path that the router chose, MAdds spent.",
    "export": "Write a run as ONNX: the dynamic network in one file, one path, or a bundle for batches.",
    "bench": "Measure latency and throughput of every width and of the dynamic network, beside static networks.",
    "report": "Show runs as one HTML page: accuracy against MAdds, gates, images and their routes, latency, training.",
    "reproduce": "Run the paper's experiments: what it claims, what comes out here, and whether the direction holds.",
    "recalibrate": "Compute the batch-norm statistics of every width of a model anew.",
    "models": "List the models: choice points, paths, MAdds from slimmest to widest, parameters.",
    "info": "Show the widths of a model: realised channels, MAdds, parameters, share of the widest.",
    "import": "Turn pretrained weights, or the authors' released DS-MBNet, into a folder that dsnet loads.",
}
MODULES = {"import": "import_weights", "eval": "evaluation", ("train", "detection"): "train_detection"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 a bug (with its traceback), 2 wrong input, 128 + n stopped by signal n."""
    import dsnet
    from dsnet.cli.parsing import Parser

    words = [_underscored(word) for word in (sys.argv[1:] if argv is None else argv)]
    parser = Parser(
        prog="dsnet",
        description="Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input.",
        version=dsnet.__version__,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", title="commands")
    chosen = next((word for word in words if word in COMMANDS), None)
    if chosen == "train":
        try:
            words = _named_configs(words)
        except ValueError as error:
            print(f"dsnet train: error: {error}", file=sys.stderr)
            return 2
    for name, text in COMMANDS.items():
        sub = Parser(description=text)
        if name == chosen:
            own = MODULES.get((name, _task(words)), MODULES.get(name, name))
            module = import_module(f"dsnet.cli.{own}")
            module.add_arguments(sub)
            if "--seed" not in sub._option_string_actions:
                sub.add_argument("--seed", type=int, default=0, help="taken by every command; without effect here")
        commands.add_subcommand(name, sub, help=text)
        sub.prog = f"dsnet {name}"
    if chosen is not None:
        words = getattr(module, "expand", list)(words)
    args = parser.parse_args(words)
    try:
        code = module.run(args[args.command], sub if chosen is None else commands.choices[chosen])
    except (ValueError, OSError) as error:
        if os.environ.get("DSNET_DEBUG"):
            raise
        print(f"dsnet {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code or 0


def _named_configs(words: Sequence[str]) -> list[str]:
    """With --config NAME as the file of a config that comes with dsnet."""
    from dsnet.layers import config_file

    found = list(words)
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--config" and equals:
            found[place] = f"--config={config_file(value)}"
        elif option == "--config" and words[place + 1 :]:
            found[place + 1] = str(config_file(words[place + 1]))
    return found


def _task(words: Sequence[str]) -> str:
    """What --task says, or else the config file or run folder that is named."""
    named = {
        option: value or follower
        for word, follower in zip(words, [*words[1:], ""], strict=True)
        for option, _, value in [word.partition("=")]
    }
    files = [named.get("--config"), *(f"{named[key]}/config.yaml" for key in ("--resume", "--from") if key in named)]
    for file in files:
        if file and "--task" not in named and Path(file).is_file():
            found = re.search(r"^task:\s*(\w+)", Path(file).read_text(errors="replace"), re.MULTILINE)
            return found[1] if found else "classification"
    return named.get("--task", "classification")


def _underscored(word: str) -> str:
    """Options are named like config keys; --image-size is taken for --image_size."""
    if not word.startswith("--"):
        return word
    option, equals, value = word.partition("=")
    return "--" + option[2:].replace("-", "_") + equals + value
