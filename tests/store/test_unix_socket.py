"""An engine that listens on a Unix socket only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dtq_core.client import Client
from dtq_core.config import load_settings
from dtq_core.inspector import Inspector
from dtq_core.store import Store, SyncStore
from dtq_local.engine import Engine


def test_submit_and_read_over_a_unix_socket(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    engine = Engine(tmp_path / "engine", args=("--unixsocket", str(socket), "--appendonly", "no", "--save", ""))
    engine.start()
    try:
        settings = load_settings(redis_url=f"unix://{socket}")

        async def there_and_back() -> str:
            store = Store.connect(settings)
            try:
                done = await Client(store, settings).submit({"task_type": "echo", "payload": {}})
                return (await Inspector(store, settings).task(done.task_id)).status.value
            finally:
                await store.close()

        assert asyncio.run(there_and_back()) == "queued"
        blocking = SyncStore.connect(settings)
        assert blocking.run(blocking.calls.lock("token", 1000)) is True
        blocking.close()
    finally:
        engine.stop()
