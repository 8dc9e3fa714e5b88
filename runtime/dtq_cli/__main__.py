"""`python -m dtq_cli`: the same as `dtq`, for where the script is not on PATH."""

import sys

from dtq_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
