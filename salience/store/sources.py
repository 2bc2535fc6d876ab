"""What a session's record names is asked of the journal: what it does not have there, it can neither read nor cite.

The journal as it stands while a tool runs holds everything up to the context that the model answered to, so it holds what
the model has seen and nothing of what it has not: a call of the same answer is no source yet (spec PRJ-3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from salience.errors import NotFound
from salience.model.artifact import Artifact
from salience.model.state import State
from salience.store.journal import Journal
from salience.store.postgres import Postgres

MIN_HASH_DIGITS = 12
"""Digits of a content hash that name a blob within a session."""
_HASH = re.compile(f"[0-9a-f]{{{MIN_HASH_DIGITS},64}}")
KNOWN = (
    "SELECT event_id FROM events"
    " WHERE tenant = %(tenant)s AND session_id = %(session)s AND event_id = ANY(%(refs)s)"
    " UNION SELECT message_id FROM messages"
    " WHERE tenant = %(tenant)s AND session_id = %(session)s AND message_id = ANY(%(refs)s)"
    " UNION SELECT body::json->>'tool_call_id' FROM messages WHERE tenant = %(tenant)s"
    " AND session_id = %(session)s AND kind = 'result' AND body::json->>'tool_call_id' = ANY(%(refs)s)"
)
"""Which of some references are events, messages or calls. Each part has an index: it reads what it finds."""
_PLACE = re.compile(r":\d+(-\d+)?$")


@dataclass(frozen=True, slots=True)
class Named:
    """A blob that belongs to a session, and what it is."""

    ref: str
    what: str


class Sources:
    """The artifacts and references of sessions, each session for itself."""

    def __init__(self, postgres: Postgres, journal: Journal, tenant: str) -> None:
        self._postgres = postgres
        self._journal = journal
        self._tenant = tenant

    async def artifact(self, session_id: str, name: str) -> Named | None:
        """The blob that a session knows by a name; None when it has none, whoever else has.

        Args:
            session_id: whose record is searched.
            name: an artifact's id, the id of a call for its output, `blob:` with a content hash, or the hash alone (at
                least `MIN_HASH_DIGITS` of its first digits).
        """
        digits = name.removeprefix("blob:").removeprefix("blob ").strip()
        digits = digits if _HASH.fullmatch(digits) else ""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM artifacts WHERE tenant = %(tenant)s AND session_id = %(session)s AND (artifact_id IN"
                " (%(name)s, 'output:' || %(name)s) OR %(digits)s <> '' AND starts_with(content_hash, %(digits)s))"
                " ORDER BY artifact_id = %(name)s DESC, seq DESC LIMIT 1",
                {"tenant": self._tenant, "session": session_id, "name": name, "digits": digits},
            )
            if row := await found.fetchone():
                artifact = Artifact.model_validate_json(row[0])
                return None if artifact.access_policy.sensitive else Named(artifact.content_hash, _what(artifact))
            if not digits:
                return None
            # What the transcript shows of a result, when the index has the whole of it under another hash.
            found = await connection.execute(
                "SELECT r FROM messages, LATERAL (VALUES (body::json->>'ref'), (body::json->>'full_ref')) AS refs (r)"
                " WHERE tenant = %s AND session_id = %s AND kind <> 'response' AND starts_with(r, %s)"
                " ORDER BY position DESC LIMIT 1",
                (self._tenant, session_id, digits),
            )
            row = await found.fetchone()
        return Named(row[0], "shown in the transcript") if row else None

    async def state(self, session_id: str) -> State:
        """The state the model has seen; an empty one before anything was recorded."""
        try:
            return (await self._journal.latest(session_id)).state
        except NotFound:
            return State(session_id=session_id)

    async def known(self, session_id: str, state: State, refs: Iterable[str]) -> frozenset[str]:
        """Which references the session's record has.

        Args:
            session_id: whose record it is.
            state: the session's state.
            refs: ids of events, messages, calls with a result, or artifacts; content hashes; paths of files that were
                read or written, with or without a line; ids of verified facts and decisions.
        """
        asked = list(dict.fromkeys(refs))
        cited = {fact.fact_id for fact in state.facts if fact.verified}
        cited |= {made.decision_id for made in state.decisions if made.verified}
        found = {ref for ref in asked if ref in cited or _PLACE.sub("", ref).removeprefix("./") in state.files}
        left = [ref for ref in asked if ref not in found]
        if left:
            async with self._postgres.connection() as connection:
                rows = await connection.execute(
                    KNOWN,
                    {"tenant": self._tenant, "session": session_id, "refs": left},
                )
                found |= {row[0] for row in await rows.fetchall()}
        for ref in asked:
            if ref not in found and await self.artifact(session_id, ref) is not None:
                found.add(ref)
        return frozenset(found)


def _what(artifact: Artifact) -> str:
    return f"{artifact.artifact_id}, {artifact.summary}" if artifact.summary else artifact.artifact_id
