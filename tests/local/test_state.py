"""dtq_local.state: who holds a state directory, and who is found there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dtq_core.errors import AlreadyRunning, InvalidArgument
from dtq_local.state import StateDir, UpRecord, discover

RECORD = UpRecord(
    pid=4711, url="redis://:secret@127.0.0.1:1/0", state_dir="/x", started_at="now", processes={"scheduler": 2}
)


def test_a_second_holder_is_refused_and_told_who_runs(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        with pytest.raises(AlreadyRunning, match="just starting"), StateDir(tmp_path / "state").locked():
            pass
        state.write(RECORD)
        with pytest.raises(AlreadyRunning, match="pid 4711, redis://") as caught, StateDir(tmp_path / "state").locked():
            pass
        assert "secret" not in caught.value.message
    with StateDir(tmp_path / "state").locked():
        pass


def test_the_lock_ends_with_its_process_and_a_reused_pid_fools_nobody(tmp_path: Path) -> None:
    code = """
import os, sys
from dtq_local.state import StateDir, UpRecord
state = StateDir(sys.argv[1])
with state.locked():
    state.write(UpRecord(pid=int(sys.argv[2]), url="redis://x", state_dir="", started_at=""))
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(os.getpid())], check=False, timeout=30)
    assert (tmp_path / "up.json").exists()
    assert StateDir(tmp_path).running() is None


def test_running_is_the_record_while_the_lock_is_held(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.running() is None
    with state.locked():
        assert state.running() is None
        state.write(RECORD)
        assert StateDir(tmp_path).running() == RECORD
        state.clear()
        assert state.running() is None
    state.clear()


def test_looking_does_not_keep_anybody_from_starting(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    with state.locked():
        state.write(RECORD)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            StateDir(tmp_path).running()

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(20):
            with StateDir(tmp_path).locked():
                pass
    finally:
        over.set()
        for reader in readers:
            reader.join()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pid": 1, "url": 2}', '{"pid": 1, "url": "x", "queues": 5}', "\xff", "null"]
)
def test_a_broken_record_is_none(tmp_path: Path, text: str) -> None:
    with StateDir(tmp_path).locked():
        (tmp_path / "up.json").write_bytes(text.encode("latin-1"))
        assert StateDir(tmp_path).running() is None


def test_only_the_owner_may_read_and_only_the_owners_record_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        state.write(RECORD)
        assert stat.S_IMODE((tmp_path / "state" / "up.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert state.running() is None


def test_git_is_told_to_look_away(tmp_path: Path) -> None:
    with StateDir(tmp_path / "state").locked():
        assert (tmp_path / "state" / ".gitignore").read_text() == "*\n"


def test_discover_looks_into_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert discover() is None
    state = StateDir(".dtq")
    with state.locked():
        state.write(RECORD)
        assert discover() == RECORD
        assert json.loads((tmp_path / ".dtq" / "up.json").read_text())["url"] == RECORD.url


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="state directory"), StateDir(tmp_path / "file" / "x").locked():
        pass


def test_only_an_empty_directory_or_one_of_ours_is_taken(tmp_path: Path) -> None:
    """Somebody's project is not hidden from git by a mistyped --state, and what we take is its owner's alone."""
    made, empty, foreign = tmp_path / "a" / "made", tmp_path / "empty", tmp_path / "foreign"
    for folder in (empty, foreign):
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
    (foreign / "precious").write_text("mine")
    for folder in (made, empty):
        for _ in range(2):  # the second time it is ours, whatever lies there by then
            with StateDir(folder).locked():
                assert folder.stat().st_mode & 0o777 == 0o700 and (folder / ".gitignore").read_text() == "*\n"
            (folder / "engine").mkdir(exist_ok=True)
    with pytest.raises(InvalidArgument, match="it holds other things \\(precious"), StateDir(foreign).locked():
        pass
    assert [path.name for path in foreign.iterdir()] == ["precious"] and foreign.stat().st_mode & 0o777 == 0o755
