"""The `dsnet` command. Each subcommand has its own file and imports heavy packages only when it runs."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Sequence
from importlib import import_module

from dsnet.errors import what_to_install

COMMANDS = {
    "demo": "Train, export, time and report a first network on embedded images, and say what it gains.",
    "train": "Train a network that chooses its width for each input. Without options it trains on the embedded digits.",
    "eval": "Evaluate a trained model at every width, and the dynamic network at several budgets.",
    "predict": "Classify images, or detect objects in them. Shows the path that each image took and its MAdds.",
    "export": "Write a run as ONNX: the dynamic network in one file, a single path, or a bundle for batches.",
    "serve": "Answer requests over HTTP. Under load, images run at narrower widths before any request is refused.",
    "bench": "Measure latency and throughput of every width and of the dynamic network, next to static networks.",
    "advise": "Say which width or budget of a trained model to deploy, and with which command.",
    "report": "Show runs on one HTML page: accuracy against MAdds, gates, routes of images, latency and training.",
    "reproduce": "Run the paper's experiments and compare the results with the paper's claims.",
    "recalibrate": "Recompute the batch-norm statistics of every width and the budgets of the router.",
    "models": "List the models with their choice points, paths, MAdds and parameters.",
    "info": "Show the widths of a model with their channels, MAdds and parameters.",
    "slim": "Turn any CNN, with its weights, into a dynamic network whose widest path computes the same.",
    "shards": "Write a folder of images as tar shards, for large datasets and for images at a URL.",
    "import": "Turn pretrained weights, or the authors' released DS-MBNet, into a folder that dsnet loads.",
}
ABOUT = "Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input."
MODULES = {"import": "import_weights", "eval": "evaluate"}
AS_THEY_ARE = ("--help-all",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 2 for wrong input, 128 + n when stopped by signal n.

    A bug ends with a traceback, and thus with code 1.
    """
    words = [underscored(word) for word in (sys.argv[1:] if argv is None else argv)]
    if not words or words[0] not in COMMANDS:
        return without_command(words)
    name, *words = words
    try:
        from dsnet.cli.arguments import Parser

        parser = Parser(prog=f"dsnet {name}", description=COMMANDS[name])
        module = import_module(f"dsnet.cli.{MODULES.get(name, name)}")
        module.add_arguments(parser)
        if hasattr(module, "add_flags"):  # flags that depend on the other arguments
            module.add_flags(parser, words)
        if "--seed" not in parser.options:
            parser.add("--seed")
        with warnings.catch_warnings():
            warnings.showwarning = said
            code = module.run(parser.read(words))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would complain at its end
        return 128 + 13
    except (Exception, KeyboardInterrupt) as error:
        if interrupted(error):
            return 130
        if (sentence := explained(error)) is None or os.environ.get("DSNET_DEBUG"):
            raise
        print(f"dsnet {name}: error: {sentence}", file=sys.stderr)
        return 2
    return code or 0


def said(message: Warning | str, *where: object, **more: object) -> None:
    """A warning in one line, without the place in the code that raised it."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C led to an error. A module may raise another one if it is interrupted while it is imported."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or interrupted(error.__context__))


def explained(error: BaseException) -> str | None:
    """What a user is told about an error; None for a bug."""
    match error:
        case ImportError():
            return what_to_install(error)
        case MemoryError():
            return (
                f"there is not enough memory ({error or 'no size given'}); close other programs, or use a smaller model"
            )
        case ValueError() | OSError():
            return str(error)
    return None


def without_command(words: Sequence[str]) -> int:
    """Handle `dsnet` without a command: print the help or the version, or report an unknown command."""
    from dsnet.cli.arguments import Parser
    from dsnet.schema import unknown_key
    from dsnet.version import __version__

    columns = min(100, shutil.get_terminal_size().columns) - 2
    lines = [
        textwrap.fill(text, columns, initial_indent=f"  {name:<12} ", subsequent_indent=" " * 15)
        for name, text in COMMANDS.items()
    ]
    parser = Parser(
        prog="dsnet",
        usage="dsnet COMMAND [options]",
        description=textwrap.fill(ABOUT, columns),
        epilog="\n".join(["commands:", *lines, "", "`dsnet COMMAND --help` shows the options of a command."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="Show the version.")
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-"):
        parser.error(f"the command {unknown_key(words[0], list(COMMANDS))}")
    parser.read(words)
    return 0


def underscored(word: str) -> str:
    """Replace hyphens in an option name: --image-size means --image_size, since options are named like config keys."""
    if not word.startswith("--") or word in AS_THEY_ARE:
        return word
    option, equals, value = word.partition("=")
    return "--" + option[2:].replace("-", "_") + equals + value
