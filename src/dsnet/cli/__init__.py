"""The `dsnet` command. One file per command; what is heavy to import is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {"models": "models", "info": "info", "import": "import_weights"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 a bug (with its traceback), 2 wrong input, 130 interrupted."""
    from jsonargparse import ArgumentParser

    import dsnet

    parser = ArgumentParser(
        prog="dsnet",
        description="Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input.",
        version=dsnet.__version__,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", title="commands")
    modules = {name: import_module(f"dsnet.cli.{module}") for name, module in COMMANDS.items()}
    for name, module in modules.items():
        commands.add_subcommand(name, module.parser(), help=module.HELP)
    args = parser.parse_args([_underscored(word) for word in (sys.argv[1:] if argv is None else argv)])
    try:
        modules[args.command].run(args[args.command])
    except (ValueError, OSError) as error:
        if os.environ.get("DSNET_DEBUG"):
            raise
        print(f"dsnet {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _underscored(word: str) -> str:
    """Options are named like config keys; --image-size is taken for --image_size."""
    if not word.startswith("--"):
        return word
    option, equals, value = word.partition("=")
    return "--" + option[2:].replace("-", "_") + equals + value
