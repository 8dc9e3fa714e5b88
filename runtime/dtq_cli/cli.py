"""The entry point `dtq`. Everything is imported inside, where a Ctrl-C in the first moment is no traceback."""

from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    try:
        from dtq_cli import door

        return door.run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
