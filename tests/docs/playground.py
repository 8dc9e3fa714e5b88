"""A folder as a reader of the docs has it: `dtq up` runs in it, and the blocks of one page are typed one after the other.

A page that says itself where `dtq up` is started, in a block marked `background`, has it from there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.calls import clean_environment
from docs.blocks import ROOT, Block
from support.eventually import eventually
from support.processes import DTQ

BIN = Path(DTQ).parent
QUICK = {"DTQ_RETRY_BASE_DELAY": "0.05", "DTQ_DRAIN_TIMEOUT_S": "0", "DTQ_LOG_LEVEL": "WARNING"}
PATIENCE_S = 120
_SIGNS = ("Traceback (most recent call last)", "error INTERNAL", "command not found", "No such file or directory")
_PRELUDE = """
set -E
sleep() { command sleep 1; }  # a page waits as a person does; a machine need not
top=$PWD
failed() { echo "$BLOCK $1 $2" >>"$top/failures"; }
trap 'failed $? "$BASH_COMMAND"' ERR
until_said() {  # file, sign, pid: a reader looks at the other terminal until it says that
    until grep -q "$2" "$1"; do kill -0 "$3" || return 9; command sleep 0.1; done
}
"""


@dataclass(frozen=True)
class Playground:
    """`record` is what `dtq up --json` printed."""

    folder: Path
    env: dict[str, str]
    record: dict[str, Any]

    def run(self, blocks: Sequence[Block]) -> list[str]:
        """What went wrong, one complaint a block: where, what, and the end of its output."""
        out = self.folder / "output"
        out.mkdir()
        script = _PRELUDE
        for block in blocks:
            typed = self._typed(block)
            sound = subprocess.run(["bash", "-n"], input=typed, capture_output=True, text=True)
            if sound.returncode:
                return [f"{block.where}: bash cannot read it: {sound.stderr.strip()}"]
            script += f"BLOCK={block.line}\necho {block.line} >$top/reached\n" + _as_typed(block, typed)
        (self.folder / "page.sh").write_text(script)
        process = subprocess.Popen(["bash", "page.sh"], cwd=self.folder, env=self.env, start_new_session=True)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            line = (self.folder / "reached").read_text().strip()
            reached = [block for block in blocks if block.line < int(line)]
            hung = f"{blocks[0].page}:{line}: did not come to an end; mark it ```sh no-run: reason if it never does"
            return [*self._complaints(reached), hung]
        _end_what_goes_on(process.pid)
        return self._complaints(blocks)

    def _complaints(self, blocks: Sequence[Block]) -> list[str]:
        return [complaint for block in blocks if (complaint := self._complaint(block))]

    def _typed(self, block: Block) -> str:
        """The commands, with what a reader fills in by hand."""
        text = block.text
        if block.kind == "console":
            text = "\n".join(f"echo '@@@'\n{command}" for command, _ in commands_with_output(block.text))
            text += "\n"
        api = str(self.record.get("api") or "").removeprefix("http://")
        port = re.search(r":(\d+)/", self.record["url"])
        filled = {
            "localhost:8000": api,
            "127.0.0.1:8000": api,
            "127.0.0.1:PORT": f"127.0.0.1:{port[1]}" if port else "",
            "PID_OF_WORKER_1": str(self.record["processes"].get("worker-1", "")),
        }
        for placeholder, value in filled.items():
            text = text.replace(placeholder, value)
        return text

    def _complaint(self, block: Block) -> str:
        file = self.folder / "output" / str(block.line)
        shown = file.read_text(errors="replace") if file.exists() else ""
        tail = "\n    ".join(shown.strip().splitlines()[-8:])
        failures = self.folder / "failures"
        failed = [
            x
            for x in (failures.read_text().splitlines() if failures.exists() else [])
            if x.split(" ")[0] == str(block.line)
        ]
        if sign := next((sign for sign in _SIGNS if sign in shown), ""):
            return f"{block.where}: {sign}\n    {tail}"
        if block.kind == "console":
            return _differs(block, shown)
        if failed and "fails" not in block.marks:
            _, status, command = failed[0].split(" ", 2)
            return f"{block.where}: exit status {status} of `{command}`\n    {tail}"
        if "fails" in block.marks and not failed:
            return f"{block.where}: is marked `fails`, and did not fail\n    {tail}"
        return ""


def _end_what_goes_on(group: int) -> None:
    """The other terminals of a page are closed; what ran in them stops as it does then."""

    def is_empty() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    try:
        eventually(is_empty, 20, "the processes of the page to end")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _as_typed(block: Block, typed: str) -> str:
    """A block of its page's first terminal, or with `background` of another one, where it runs until the page is over."""
    file = f'"$top/output/{block.line}"'
    if "background" in block.marks:
        return f"( {typed.strip()}\n) >{file} 2>&1 </dev/null &\nuntil_said {file} '{block.marks['background'].strip()}' $!\n"
    return f"{{\n:\n{typed}}} >{file} 2>&1 </dev/null\n"


def commands_with_output(text: str) -> list[tuple[str, str]]:
    """The `$ command` lines of a console block (with continuations), each with what the page shows below it."""
    found: list[tuple[str, str]] = []
    continued = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif continued and found:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        continued = bool(found) and found[-1][1] == "" and line.endswith("\\")
    return found


def _differs(block: Block, shown: str) -> str:
    """A console block shows its output: the words must be there, whatever the numbers, ids and spaces."""
    answers = shown.split("@@@\n")[1:]
    for (command, expected), answer in zip(commands_with_output(block.text), answers, strict=True):
        pattern = ".*".join(re.escape(_normal(part)) for part in re.split("…|\\.\\.\\.", expected))
        if not re.search(pattern, _normal(answer), re.DOTALL):
            return f"{block.where}: `{command}` shows\n    {answer.strip()}\n  and not\n    {expected.strip()}"
    return ""


def _normal(text: str) -> str:
    text = re.sub(r"\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\bworker-[0-9a-f]{8}\b", "WORKER", text)
    return re.sub(r"\s+", " ", re.sub(r"\d+", "0", text)).strip()


@contextmanager
def playground(folder: Path, page: Sequence[Block]) -> Iterator[Playground]:
    """A folder with the files that the page tells its reader to write, and a `dtq up` that has loaded them."""
    (folder / ".venv").symlink_to(ROOT / ".venv" if (ROOT / ".venv").exists() else BIN.parent)
    modules = ["dtq_examples.tasks"]
    for block in page:
        named = re.search(r"\binto `(?P<name>[a-z_]+)\.py`", block.before)
        if block.kind == "python" and named:
            (folder / f"{named['name']}.py").write_text(block.text)
            modules += [named["name"]] if "@task(" in block.text else []
    env = clean_environment(PATH=f"{BIN}:{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE="1")
    if any("background" in block.marks for block in page):  # the page starts what it needs itself
        yield Playground(folder, env | QUICK, {"url": "", "processes": {}})
        return
    with (folder / "up.log").open("wb") as log, (folder / "up.json").open("wb") as record:
        up = subprocess.Popen(
            [DTQ, "up", "--json", "--tasks", ",".join(modules)], env={**env, **QUICK}, cwd=folder,
            stdin=subprocess.DEVNULL, stdout=record, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:

        def ready() -> str:
            assert up.poll() is None, (folder / "up.log").read_text()
            text = (folder / "up.json").read_text()
            return text if text.rstrip().endswith("}") else ""

        printed = eventually(ready, PATIENCE_S, lambda: f"dtq up to be ready:\n{(folder / 'up.log').read_text()}")
        yield Playground(folder, env, json.loads(printed))
    finally:
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(up.pid, signal.SIGKILL)
            up.wait()
