"""Commands of one word to a running session: it acknowledges, and the command says what it answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from salience.cli.connection import connected
from salience.cli.options import Json, SessionId
from salience.cli.output import json_out, say
from salience.model import text

if TYPE_CHECKING:
    from salience.client import Salience


def interrupt(
    session: SessionId,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why, for the record.", show_default=False)] = "",
    json_: Json = False,
) -> None:
    """Stop what a session is doing; it stays open for input.

    Calls that were running are cancelled, what they did so far stays in the record, and each gets a paired result.
    """

    async def work(client: Salience) -> str:
        return await client.interrupt(session, text.preview(text.mend(reason), 500))

    step = connected(work)
    if json_:
        json_out({"session_id": session, "interrupted": step})
    else:
        say(f"{session}: interrupted while {step.replace('_', ' ')}")


def pause(session: SessionId, json_: Json = False) -> None:
    """Let a session start no further model call or tool until `resume`."""

    async def work(client: Salience) -> str:
        return await client.pause(session)

    _answered(session, connected(work), json_)


def close(session: SessionId, json_: Json = False) -> None:
    """End a session; it stays readable and resumable."""

    async def work(client: Salience) -> str:
        return await client.close(session)

    _answered(session, connected(work), json_)


def _answered(session_id: str, status: str, json_: bool) -> None:
    if json_:
        json_out({"session_id": session_id, "status": status})
    else:
        say(f"{session_id}: {status}")
