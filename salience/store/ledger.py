"""The ledger remembers what was started and what was paid for, so that neither happens twice (spec LOOP-4, LOOP-5)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from salience.model.canonical import canonical_json
from salience.model.tool import ToolClass
from salience.store.postgres import Postgres


@dataclass(frozen=True, slots=True)
class Claim:
    """The ledger's row of a tool call; `first` says that this claim made it."""

    first: bool
    manifest_ref: str | None
    attempt: int
    outcome: dict[str, Any] | None
    intent: dict[str, Any] | None


class Ledger:
    """Claims, intents and outcomes of tool calls, and stored answers of models."""

    def __init__(self, postgres: Postgres, tenant: str) -> None:
        self._postgres = postgres
        self._tenant = tenant

    async def claim(
        self,
        session_id: str,
        tool_call_id: str,
        *,
        run_id: str,
        name: str,
        tool_class: ToolClass,
        attempt: int,
        manifest_ref: str | None,
        worker: str,
    ) -> Claim:
        """Claim a call before it runs; a call that was claimed before gives the row as it stands."""
        async with self._postgres.connection() as connection:
            made = await connection.execute(
                "INSERT INTO effects (tenant, session_id, run_id, tool_call_id, name, tool_class, attempt, worker,"
                " manifest_ref) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1",
                (self._tenant, session_id, run_id, tool_call_id, name, tool_class, attempt, worker, manifest_ref),
            )
            if await made.fetchone():
                return Claim(True, manifest_ref, attempt, None, None)
        known = await self.effect(session_id, tool_call_id)
        if known is None:  # the insert met a row, and rows are never deleted
            raise RuntimeError(f"effect {tool_call_id} of {session_id} vanished from the ledger")
        return known

    async def effect(self, session_id: str, tool_call_id: str) -> Claim | None:
        """The latest row of a call; None when it was never claimed."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT manifest_ref, attempt, outcome, intent FROM effects"
                " WHERE tenant = %s AND session_id = %s AND tool_call_id = %s ORDER BY claimed_at DESC LIMIT 1",
                (self._tenant, session_id, tool_call_id),
            )
            row = await found.fetchone()
        if row is None:
            return None
        manifest_ref, attempt, outcome, intent = row
        return Claim(False, manifest_ref, attempt, _loads(outcome), _loads(intent))

    async def intend(self, session_id: str, tool_call_id: str, intent: dict[str, Any]) -> bool:
        """Record what an idempotent call is about to make true; False when its outcome is recorded already."""
        return await self._update("intent = %s", canonical_json(intent).decode(), session_id, tool_call_id)

    async def settle(self, session_id: str, tool_call_id: str, outcome: dict[str, Any]) -> None:
        """Record how a call ended; the first outcome stays."""
        await self._update(
            "outcome = %s, settled_at = now()", canonical_json(outcome).decode(), session_id, tool_call_id
        )

    async def _update(self, assignment: str, value: str, session_id: str, tool_call_id: str) -> bool:
        async with self._postgres.connection() as connection:
            done = await connection.execute(
                f"UPDATE effects SET {assignment} WHERE tenant = %s AND session_id = %s AND tool_call_id = %s"
                " AND outcome IS NULL",
                (value, self._tenant, session_id, tool_call_id),
            )
        return done.rowcount > 0

    async def stored_answer(self, session_id: str, run_id: str, activity_id: str) -> dict[str, Any] | None:
        """The answer that an earlier attempt of the same model call has stored."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM model_responses"
                " WHERE tenant = %s AND session_id = %s AND run_id = %s AND activity_id = %s",
                (self._tenant, session_id, run_id, activity_id),
            )
            row = await found.fetchone()
        return json.loads(row[0]) if row else None

    async def store_answer(self, session_id: str, run_id: str, activity_id: str, answer: dict[str, Any]) -> None:
        """Keep an answer before it is returned."""
        async with self._postgres.connection() as connection:
            await connection.execute(
                "INSERT INTO model_responses (tenant, session_id, run_id, activity_id, body)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self._tenant, session_id, run_id, activity_id, canonical_json(answer).decode()),
            )

    async def attempt(self, session_id: str, run_id: str, activity_id: str, attempt: int, worker: str) -> None:
        """Note that an activity was started again: history keeps only the last attempt (design §2)."""
        async with self._postgres.connection() as connection:
            await connection.execute(
                "INSERT INTO attempts (tenant, session_id, run_id, activity_id, attempt, worker)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self._tenant, session_id, run_id, activity_id, attempt, worker),
            )


def _loads(value: str | None) -> dict[str, Any] | None:
    return json.loads(value) if value else None
