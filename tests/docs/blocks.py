"""The fenced blocks of a page, and which of them are for a shell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
SHELLS = ("sh", "bash", "shell")
_COMMANDS = {
    ".", "cat", "cd", "curl", "dtq", "echo", "export", "for", "git", "kill", "make", "mkdir", "pip", "pytest", "python",
    "python3", "redis-cli", "sleep", "source", "time", "uv", "uvicorn", "valkey-cli", "watch", "websocat", "while",
}  # fmt: skip
_FENCE = re.compile(r"^( *)(`{3,})(.*)$")


@dataclass(frozen=True)
class Block:
    """One block. `marks` are the words behind its language: `no-run: reason`, `fails: reason`, `background: sign`."""

    page: str
    line: int
    language: str
    marks: dict[str, str] = field(default_factory=dict)
    text: str = ""
    before: str = ""
    """The paragraph above it."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """sh, console, python, or "" for what nobody runs. Without a language the first word decides."""
        if self.language in SHELLS:
            return "sh"
        if self.language in ("console", "python"):
            return self.language
        first = next((line for line in self.text.splitlines() if line and not line.startswith("#")), "")
        if self.language or not first:
            return ""
        if first.startswith("$ "):
            return "console"
        words = first.split()
        while words and re.match(r"[A-Z_]+=|id=", words[0]):
            if words[0].startswith("id=$("):
                return "sh"
            words.pop(0)
        return "sh" if words and (words[0] in _COMMANDS or words[0].endswith("/dtq")) else ""


def blocks(path: Path) -> list[Block]:
    """All blocks of a page, in order."""
    found: list[Block] = []
    opened: tuple[int, str, list[str]] | None = None
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and opened is None:
            opened = (number, fence[3].strip(), [])
        elif fence and opened is not None and not fence[3].strip():
            found.append(_block(path, opened, lines))
            opened = None
        elif opened is not None:
            opened[2].append(line)
    assert opened is None, f"{path.name}:{opened[0]}: a block without an end"
    return found


def _block(path: Path, opened: tuple[int, str, list[str]], lines: list[str]) -> Block:
    number, info, text = opened
    language, _, marks = info.partition(" ")
    if language.endswith(":"):  # a mark without a language
        language, marks = "", info
    above = "\n".join(lines[: number - 1]).rstrip().rsplit("\n\n", 1)[-1]
    known = dict(re.findall(r"(no-run|fails|background): *([^;]+)", marks))
    assert not marks or known, (
        f"{path.name}:{number}: a mark is `no-run: reason`, `fails: reason` or `background: sign`, not {marks!r}"
    )
    margin = min((len(x) - len(x.lstrip()) for x in text if x.strip()), default=0)
    return Block(
        path.relative_to(ROOT).as_posix(), number, language, known, "\n".join(x[margin:] for x in text) + "\n", above
    )
