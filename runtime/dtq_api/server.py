"""`dtq api run`: the service as a process, on uvicorn."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import uvicorn
from pydantic import SecretStr

from dtq_api.app import create_app, quiet_server_logs
from dtq_api.farewell import STOP_S
from dtq_core.config import Settings
from dtq_core.errors import DtqError
from dtq_core.log import RateLimited
from dtq_core.store import SyncStore
from dtq_core.text import redact

logger = logging.getLogger("dtq.api")
MAX_MESSAGE_BYTES = 65_536
"""What a WebSocket client may send; it has nothing to say."""
RETRY_S = 2.0
REMINDER_S = 30.0


def run(settings: Settings, workers: int = 1) -> int:
    """Serve until SIGTERM or SIGINT, on DTQ_API_HOST and DTQ_API_PORT. Returns the exit status.

    With more than one worker the port is shared by as many processes, which are started again when they end. Raises
    InvalidConfig. A port that is taken is status 1, with a line in the log.
    """
    quiet_server_logs()
    threading.Thread(target=_first_contact, args=(settings,), name="dtq-first-contact", daemon=True).start()
    options: dict[str, Any] = {
        "host": settings.api_host,
        "port": settings.api_port,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": STOP_S,
        "ws_per_message_deflate": False,  # its state would cost every socket a quarter of a megabyte
        "ws_max_size": MAX_MESSAGE_BYTES,
        "lifespan": "on",
    }
    try:
        if workers == 1:
            _serve_here(settings, options)
        else:
            os.environ.update(_environment(settings))
            uvicorn.run("dtq_api.app:create_app", factory=True, workers=workers, **options)
    except SystemExit as exc:
        return 1 if exc.code else 0
    return 0


def _first_contact(settings: Settings) -> None:
    """Say at once that Redis cannot be used, and now and then until it can. Requests are answered with 503 meanwhile;
    an outage after that is told by those who notice it."""
    limited = RateLimited(logger, REMINDER_S)
    where = redact(settings.redis_url.get_secret_value())
    failed = False
    while True:
        try:
            store = SyncStore.connect(settings)
            store.send(("TIME",))
            store.close()
            break
        except DtqError as exc:
            failed = True
            limited.log(
                logging.WARNING, exc.code, "%s: %s, at %s; requests are answered with 503", exc.code, exc.message, where
            )
        time.sleep(RETRY_S)
    if failed:
        logger.info("Redis answers now")


def _serve_here(settings: Settings, options: dict[str, Any]) -> None:
    server = uvicorn.Server(uvicorn.Config(create_app(settings), **options))

    def asked(signum: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Until the server listens for signals itself, and when it raises its signal once more after it has stopped.
    before = {signum: signal.signal(signum, asked) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if not server.started:
        raise SystemExit(1)


def _environment(settings: Settings) -> dict[str, str]:
    """The settings as variables, for processes that read them anew: flags of the command line must reach them."""
    return {f"DTQ_{name.upper()}": _text(value) for name, value in settings}


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
