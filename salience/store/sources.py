"""What a session's record names is asked of the journal: what it does not have there, it can neither read nor cite.

The journal as it stands while a tool runs holds everything up to the context that the model answered to, so it holds what
the model has seen and nothing of what it has not: a call of the same answer is no source yet (spec PRJ-3).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from salience.model.artifact import Artifact
from salience.model.state import State
from salience.store.journal import Journal, StateAt
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
_OF_SESSION = "WHERE tenant = %(tenant)s AND session_id = %(session)s"
_LATEST = "ORDER BY artifact_id = %(name)s DESC, seq DESC LIMIT 1"
BY_ID = (
    f"SELECT body FROM artifacts {_OF_SESSION} AND artifact_id = ANY(ARRAY[%(name)s, 'output:' || %(name)s]) {_LATEST}"
)
# Hexadecimal digits and nothing else come between some digits and the same with a "g" behind them.
BY_HASH = (
    f"SELECT body FROM artifacts {_OF_SESSION}"
    ' AND content_hash COLLATE "C" >= %(name)s AND content_hash COLLATE "C" < %(beyond)s ORDER BY seq DESC LIMIT 1'
)
SHOWN = (
    f"SELECT body::json->>'ref' FROM messages {_OF_SESSION} AND kind = 'result'"
    """ AND (body::json->>'ref') COLLATE "C" >= %(name)s AND (body::json->>'ref') COLLATE "C" < %(beyond)s"""
    " ORDER BY position DESC LIMIT 1"
)
KEPT_STATES = 16
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
        self._states: OrderedDict[str, StateAt] = OrderedDict()

    async def artifact(self, session_id: str, name: str) -> Named | None:
        """The blob that a session knows by a name; None when it has none, whoever else has.

        Args:
            session_id: whose record is searched.
            name: an artifact's id, the id of a call for its output, `blob:` with a content hash, or the hash alone (at
                least `MIN_HASH_DIGITS` of its first digits).
        """
        digits = name.removeprefix("blob:").removeprefix("blob ").strip()
        named = await self._one(BY_ID, session_id, name)
        if named is None and _HASH.fullmatch(digits):
            named = await self._one(BY_HASH, session_id, digits)
            if named is None:
                # What the transcript shows of a result, when the index has the whole of it under another hash.
                shown = await self._one(SHOWN, session_id, digits)
                return Named(shown, "shown in the transcript") if shown is not None else None
        if named is None:
            return None
        artifact = Artifact.model_validate_json(named)
        return None if artifact.access_policy.sensitive else Named(artifact.content_hash, _what(artifact))

    async def _one(self, query: str, session_id: str, name: str) -> str | None:
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                query, {"tenant": self._tenant, "session": session_id, "name": name, "beyond": f"{name}g"}
            )
            row = await found.fetchone()
        return row[0] if row else None

    async def state(self, session_id: str) -> State:
        """The state the model has seen; an empty one before anything was recorded.

        A state of thousands of parts takes longer to read than a call that cites some of them takes otherwise, so the one
        answered last is kept and brought up to date.
        """
        kept = await self._journal.state(session_id, self._states.pop(session_id, None))
        self._states[session_id] = kept
        while len(self._states) > KEPT_STATES:
            self._states.popitem(last=False)
        return kept.state

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
