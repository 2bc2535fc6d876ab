"""A command connects, does its work and gives the connections back, also when it is interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from salience.errors import NotFound

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.projection.projection import SavedProjection

_Result = TypeVar("_Result")


def connected(work: Callable[[Salience], Awaitable[_Result]]) -> _Result:
    """Run `work` with a connected client.

    Raises:
        StackNotRunning: nothing is configured and the embedded stack is not up.
        BackendUnavailable: a backend does not answer.
    """
    # What the pool or the Temporal core would log is raised as one of our errors, or retried; stderr is for people.
    logging.getLogger().addHandler(logging.NullHandler())

    async def run() -> _Result:
        from salience.client import Salience

        async with await Salience.connect() as client:
            return await work(client)

    return asyncio.run(run())


async def recorded(client: Salience, session_id: str) -> SavedProjection:
    """The session as the journal has it.

    Raises:
        NotFound: there is no such session, or no worker has recorded anything of it yet.
    """
    try:
        return await client.journal.latest(session_id)
    except NotFound:
        if await client.running(session_id):
            raise NotFound(
                f"session {session_id} is accepted, but no worker has recorded anything of it yet",
                mend="try again in a moment, or salience doctor",
            ) from None
        raise
