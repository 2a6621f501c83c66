"""python -m dsnet: the same as the command dsnet."""

import sys

from dsnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
