"""`python -m dtq_local.look MODULE…`: import task modules here, and say in one JSON document what they are made of.

`{"error": "", "files": […]}`: the fault, empty without one, and the source files that were loaded and may be edited: not
those of the standard library or of installed packages. A process of its own, because Python cannot forget a module.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig

from dtq_core.errors import InvalidConfig
from dtq_local import modules


def main(names: list[str]) -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # what modules print is no answer
    error = ""
    try:
        modules.load(names)
    except InvalidConfig as exc:
        error = exc.message
    document = json.dumps({"error": error, "files": sorted(_editable())}).encode()
    while document:
        document = document[os.write(answer, document) :]
    os._exit(0)  # a thread that a module has started must not keep us


def _editable() -> set[str]:
    installed = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    roots = tuple(os.path.realpath(path) + os.sep for path in installed)
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {os.path.realpath(path) for path in loaded if isinstance(path, str) and path.endswith(".py")}
    return {path for path in files if not path.startswith(roots)}


if __name__ == "__main__":
    main(sys.argv[1:])
