"""stdin, stdout and stderr as a script, a cron job or a full disk leave them; input that is no text."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli.calls import Cli
from cli.terminal import terminal
from support.engines import Server
from support.eventually import eventually
from support.processes import DTQ


def bash(cli: Cli, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `dtq` is ours."""
    path = f"{Path(DTQ).parent}:{cli.env['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, cwd=cli.folder, timeout=60,
        env={**cli.env, "PATH": path, **env},
    )  # fmt: skip


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-", "<&- 2>&-"])
def test_closed_streams(cli: Cli, engine: Server, closed: str) -> None:
    """The connection must not get the number of stdout: a table would be a command to Redis."""
    done = bash(cli, f"dtq list {closed}; echo $? >status; dtq submit -q --type demo {closed}; echo $? >>status")
    assert (cli.folder / "status").read_text().split() == ["0", "0"], done
    assert "INTERNAL" not in done.stderr and engine.redis.zcard("dtq:tasks:recent") == 1


def test_a_closed_stdin_holds_no_payload_and_no_yes(cli: Cli) -> None:
    done = bash(cli, "dtq submit --type demo --payload - <&-")
    assert done.returncode == 2 and done.stderr.startswith("error INVALID_TASK: payload: not JSON")
    done = bash(cli, "dtq purge --queue default <&-")
    assert done.returncode == 2 and "--yes" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_no_success(cli: Cli) -> None:
    calls = [
        ("list", "1"),
        ("list --json", "1"),
        *((w, "") for w in ("list", "--help", "--version", "completion bash")),
    ]
    for words, unbuffered in calls:
        done = bash(cli, f"dtq {words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 1, done
        assert done.stderr.startswith("error OUTPUT_FAILED: stdout: No space left") and done.stderr.count("\n") == 1
    assert bash(cli, "dtq get nobody 2>/dev/full").returncode == 1


def test_a_reader_that_goes_away(cli: Cli) -> None:
    for n in range(3):
        cli.submit("demo", '{"x": "%s"}' % ("y" * 60_000), "--idempotency-key", str(n))
    for words in ("list --json", "list", "completion bash", "--help"):
        done = bash(cli, f"dtq {words} | head -1")
        assert done.returncode in (0, 141) and done.stderr == "" and done.stdout.count("\n") == 1, done


@pytest.mark.parametrize("words", ["events --follow", "events --seconds 60", "logs -f"])
def test_a_reader_that_goes_away_while_nothing_is_said(cli: Cli, engine: Server, words: str) -> None:
    process = subprocess.Popen(
        [DTQ, *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(cli.env), cwd=cli.folder
    )
    if words.startswith("events"):
        eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(20), process.stderr.read()) == (141, b"")


def test_ctrl_c_without_a_terminal_says_nothing(cli: Cli, engine: Server) -> None:
    process = subprocess.Popen(
        [DTQ, "events", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(cli.env), cwd=cli.folder
    )
    eventually(lambda: engine.redis.pubsub_numsub("dtq:events")[0][1] == 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    "code, payload, says",
    [
        ("INVALID_TASK", b"[" * 200_000, "nested deeper than 128 levels"),
        ("INVALID_TASK", b'{"x":' * 1000 + b"1" + b"}" * 1000, "nested deeper than 128 levels"),
        ("INVALID_TASK", b'{"x": ' + b"9" * 5000 + b"}", "a whole number of 5000 digits, at most 4300"),
        ("INVALID_TASK", b'{"x": "\xff"}', "byte 8 is not UTF-8"),
        ("INVALID_TASK", '{"x": 1}'.encode("utf-16"), "byte 1 is not UTF-8"),
    ],
)
def test_payloads_that_are_no_task(cli: Cli, engine: Server, code: str, payload: bytes, says: str) -> None:
    (cli.folder / "payload").write_bytes(payload)
    for source, stdin in (("@payload", b""), ("-", payload)):
        err = cli.refused(code, "submit", "--type", "demo", "--payload", source, stdin=stdin, status=2)
        assert says in err and len(err) < 300
    assert engine.redis.dbsize() == 0


def test_a_byte_order_mark_is_no_fault(cli: Cli) -> None:
    (cli.folder / "windows.json").write_bytes(b'\xef\xbb\xbf{"x": 1}')
    assert cli.json("get", cli.submit("demo", "@windows.json"))["payload"] == {"x": 1}


def test_receipts_that_are_no_text(cli: Cli) -> None:
    (cli.folder / "receipts").write_bytes(b"\xff\xfe\n")
    cli.refused("INVALID_ARGUMENT", "audit", "verify", "--receipts", "receipts", status=2)
    cli.refused("INVALID_ARGUMENT", "audit", "verify", "--receipts", "-", status=2, stdin=b"\xff\xfe\n")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "C"}])
def test_the_locale_c_is_ascii(cli: Cli, locale: dict[str, str]) -> None:
    plain = Cli(cli.folder, {k: v for k, v in cli.env.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF8"))})
    task_id = plain.submit("t" * 100, '{"x": "€ ü"}')
    table = plain.ok("list", env=locale)
    assert table.isascii() and "~" in table
    assert plain.ok("get", task_id, env=locale).isascii()
    assert plain.json("get", task_id, env=locale)["payload"] == {"x": "€ ü"}
    assert "…" in plain.ok("list", env={"LC_ALL": "C.UTF-8"})
    with terminal(plain, "list", **locale) as screen:
        assert screen.end() == 0 and screen.shown.isascii()


def test_colours_may_be_asked_for_and_refused(cli: Cli) -> None:
    cli.ok("cancel", cli.submit("demo"))
    assert "\x1b[90mcancelled" in cli.ok("list", env={"FORCE_COLOR": "1"})
    assert "\x1b" not in cli.ok("list", env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
    assert "\x1b" not in cli.ok("list", env={"FORCE_COLOR": "0"}) + cli.ok("list", env={"FORCE_COLOR": ""})
    assert "\x1b" not in cli.ok("list", "--json", env={"FORCE_COLOR": "1"})


def test_a_misspelt_setting_is_told_on_stderr(cli: Cli) -> None:
    done = cli("list", "--json", env={"DTQ_MAX_ATEMPTS": "3"})
    assert done.json["tasks"] == []
    assert done.err == "warning: DTQ_MAX_ATEMPTS is no setting and is ignored; did you mean DTQ_MAX_ATTEMPTS?\n"
