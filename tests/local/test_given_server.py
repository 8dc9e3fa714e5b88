"""`dtq up --redis` on a server that cannot be used: one clear line, nothing left running, no password in it."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from local.running import environment
from support.engines import Server
from support.processes import DTQ

from dtq_local.spawn import popen


@pytest.fixture
def web_server() -> Iterator[int]:
    """Port of something that speaks, but not as Redis does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "url, code, words",
    [
        ("redis://nobody:secret-word@HOST/0", 1, "Redis refuses the user or the password, at redis://nobody:***@"),
        ("redis://HOST/9999", 1, "Redis has no database of that number"),
        ("redis://HOST/shop", 2, "what follows the / is the number of a database"),
        ("redis://127.0.0.1:1/0", 1, "Redis does not answer (Connection refused), at redis://127.0.0.1:1/0"),
        ("redis://:secret-word@no-such-host.invalid:6379/0", 1, "Redis does not answer (Name or service not known)"),
        ("unix:///nowhere/redis.sock", 1, "Redis does not answer (No such file or directory), at unix:///nowhere"),
        ("unix://", 2, "DTQ_REDIS_URL"),
        ("redis://WEB/0", 1, "what answers there is no Redis"),
    ],
)
def test_one_clear_line(engine: Server, web_server: int, tmp_path: Path, url: str, code: int, words: str) -> None:
    url = url.replace("HOST", f"127.0.0.1:{engine.port}").replace("WEB", f"127.0.0.1:{web_server}")
    done = subprocess.run(
        [DTQ, "up", "--redis", url], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    if "Temporary failure in name resolution" in done.stderr:
        words = "Redis does not answer"  # a machine without a network
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and done.stderr.startswith("error ") and done.stderr.count("\n") == 1
    assert "secret-word" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_document_holds_the_password_of_a_given_server(engine: Server, tmp_path: Path) -> None:
    engine.redis.acl_setuser(
        "shop", enabled=True, passwords=["+secret-word"], keys=["*"], channels=["*"], commands=["+@all"]
    )
    url = f"redis://shop:secret-word@127.0.0.1:{engine.port}/0"
    process = popen(
        [DTQ, "up", "--workers", "1", "--json", "--redis"], cwd=tmp_path, env=environment(DTQ_REDIS_URL=url),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        documents = process.stdout.readline().decode()
        documents += "".join(status(tmp_path, *words) for words in ([], ["--json"]))
        process.terminate()
        documents += process.communicate(timeout=30)[1].decode()
        assert process.returncode == 0
        assert "redis://shop:***@127.0.0.1" in documents and "secret-word" not in documents
    finally:
        process.kill()
        engine.redis.acl_deluser("shop")


def status(folder: Path, *words: str) -> str:
    return subprocess.run(
        [DTQ, "status", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=True
    ).stdout
