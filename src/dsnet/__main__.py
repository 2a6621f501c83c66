"""python -m dsnet: the same as the command dsnet."""

import sys


def main() -> int:
    """Run the command. Ctrl-C ends it quietly, also while modules are imported."""
    try:
        from dsnet.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
