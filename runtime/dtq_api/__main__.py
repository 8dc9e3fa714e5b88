"""`python -m dtq_api`: the service with the settings of the environment, as `dtq api run`."""

from __future__ import annotations

import sys

from dtq_api.server import run
from dtq_core import log
from dtq_core.config import load_settings
from dtq_core.errors import DtqError


def main() -> int:
    try:
        settings = load_settings()
        log.configure(settings, "api")
        return run(settings)
    except DtqError as exc:
        print(f"dtq api: {exc.message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
