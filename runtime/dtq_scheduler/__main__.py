"""`python -m dtq_scheduler`: as `dtq scheduler run`."""

from __future__ import annotations

import sys

from dtq_core import log
from dtq_core.config import load_settings
from dtq_core.errors import InvalidConfig
from dtq_scheduler.process import run


def main() -> int:
    try:
        settings = load_settings()
    except InvalidConfig as exc:
        print(f"error {exc.code}: {exc}", file=sys.stderr)
        return 2
    log.configure(settings, "scheduler")
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
