"""`python -m dtq_scheduler`: as `dtq scheduler run`."""

from __future__ import annotations

import sys

from dtq_core import log
from dtq_core.config import load_settings
from dtq_core.errors import STATUS_OF_CODE, DtqError
from dtq_scheduler.process import run


def main() -> int:
    try:
        settings = load_settings()
        log.configure(settings, "scheduler")
        return run(settings)
    except DtqError as exc:
        print(f"error {exc.code}: {exc.message}", file=sys.stderr)
        return STATUS_OF_CODE[exc.code][1]


if __name__ == "__main__":
    sys.exit(main())
