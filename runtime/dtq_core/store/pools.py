"""Pools whose connections can be told to connect anew, the ones in use as well: after a failover the old server still answers."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio


def hung_up(connection: Any) -> bool:
    """Whether the server closed or reset this asyncio connection while nothing was under way."""
    return connection.is_connected and bool(connection._reader.at_eof() or connection._writer.is_closing())


class Pool(redis.asyncio.BlockingConnectionPool):
    """The pool of the asyncio store."""

    def leave(self) -> None:
        """Every connection is made anew before it is used again; what is under way goes on. Does no I/O."""
        connections: list[Any] = [*self._available_connections, *self._in_use_connections]
        for connection in connections:
            connection.mark_for_reconnect()

    async def ensure_connection(self, connection: Any) -> None:
        if connection.should_reconnect() or hung_up(connection):
            await connection.disconnect(nowait=True)
        await super().ensure_connection(connection)


class SyncPool(redis.BlockingConnectionPool):
    """The pool of the blocking store."""

    def leave(self) -> None:
        """As Pool.leave; from any thread."""
        for connection in list(self._connections):
            connection.mark_for_reconnect()

    def get_connection(self, *args: Any, **options: Any) -> Any:
        parent: Any = super()
        connection = parent.get_connection(*args, **options)
        try:
            if connection.should_reconnect():
                connection.disconnect()
                connection.connect()
        except BaseException:
            parent.release(connection)
            raise
        return connection
