"""One pool of connections a process; what Postgres refuses becomes one of our errors (spec LOOP-3)."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from salience.errors import BackendUnavailable

Connection = AsyncConnection[TupleRow]


_NOTICE = {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
"""A server that went away without a word, over a network: noticed after 20 s, where the system's defaults take hours."""


class Postgres:
    """A pool for the runtime role, opened on first use."""

    def __init__(self, dsn: str, *, max_size: int = 16, timeout_s: float = 10) -> None:
        self._pool = AsyncConnectionPool[Connection](
            dsn,
            min_size=1,
            max_size=max_size,
            timeout=timeout_s,
            open=False,
            check=_refuse_closed,
            kwargs={"autocommit": True, "connect_timeout": 5, **_NOTICE},
        )
        self._opened = False

    async def open(self) -> None:
        """Start filling the pool; Postgres need not be there yet."""
        if not self._opened:
            self._opened = True
            await self._pool.open(wait=False)

    async def close(self) -> None:
        """Give all connections back."""
        if self._opened:
            await self._pool.close(timeout=2)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection in autocommit mode.

        Raises:
            BackendUnavailable: Postgres is not there, or went away.
        """
        await self.open()
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.OperationalError, PoolTimeout) as error:
            raise BackendUnavailable(
                f"Postgres did not answer: {' '.join(str(error).split())[:200]}", mend="salience doctor"
            ) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction that commits at the end of the block."""
        async with self.connection() as connection, connection.transaction():
            yield connection


async def _refuse_closed(connection: Connection) -> None:
    """Have the pool replace a connection that the server has ended, without asking the server at every use.

    On an idle connection there is something to read only when the server said good-bye: without this, every connection of
    the pool would fail one caller after Postgres was restarted.
    """
    if connection.closed:
        raise psycopg.OperationalError("the connection is closed")
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    if waiting.poll(0):
        await connection.close()  # what still looks open would be given out again
        raise psycopg.OperationalError("the server ended the connection")
