"""One pool of connections a process; what Postgres refuses becomes one of our errors (spec LOOP-3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from salience.errors import BackendUnavailable

Connection = AsyncConnection[TupleRow]


class Postgres:
    """A pool for the runtime role, opened on first use."""

    def __init__(self, dsn: str, *, max_size: int = 16, timeout_s: float = 10) -> None:
        self._pool = AsyncConnectionPool[Connection](
            dsn,
            min_size=1,
            max_size=max_size,
            timeout=timeout_s,
            open=False,
            kwargs={"autocommit": True, "connect_timeout": 5},
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
