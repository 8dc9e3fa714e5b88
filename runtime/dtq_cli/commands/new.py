"""new: a project of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from dtq_cli import output
from dtq_cli.arguments import wants_json
from dtq_local.project import make


def new(args: argparse.Namespace) -> int:
    name: str = args.name
    place = make(name, Path.cwd())
    made = sorted(str(path.relative_to(place.parent)) for path in place.rglob("*") if path.is_file())
    if wants_json(args):
        output.document({"name": name, "path": str(place), "files": made})
        return 0
    print("\n".join(made))
    print(
        f"\n{name} is made. It runs as it is:\n\n"
        f"  cd {name}\n"
        f"  dtq up --tasks {name}.tasks --reload\n\n"
        f"In another terminal, in {name}:\n\n"
        '  dtq submit --type greet --payload \'{"name": "Ann"}\'\n'
        "  python -m pytest"
    )
    return 0
