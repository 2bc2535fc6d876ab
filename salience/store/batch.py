"""What a turn writes does not grow with the session: the state goes with snapshots only once it is large (PRJ-2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from salience.log.chain import Row
from salience.model.artifact import Artifact
from salience.projection.projection import Projection
from salience.projection.state import FOLD_VERSION
from salience.projection.transcript import Entry
from salience.store.bundles import StoredBundle

SNAPSHOT_EVERY = 256
"""Events from one snapshot to the next: at most so many are folded again when a process takes a session over."""
SMALL_STATE = 16 * 1024
"""A state of fewer characters is written with every projection: it costs less than folding costs the next reader."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the journal of a session stands."""

    seq: int
    head: str


@dataclass(slots=True)
class Batch:
    """What one projection records: rows, the fold after them, and what else the fold brought."""

    projection: Projection
    rows: Sequence[Row] = ()
    entries: Sequence[Entry] = ()
    artifacts: Sequence[Artifact] = ()
    bundles: Sequence[StoredBundle] = ()
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class Written:
    """The fold in the pieces that are stored.

    Attributes:
        standing: everything but the state, as JSON.
        state: the state as JSON; None leaves the stored one, which the events since then bring up to date.
        snapshot: both together; None when no snapshot is due.
        state_size: characters of the state, as far as they are known.
    """

    standing: str
    state: str | None
    snapshot: str | None
    state_size: int


def written(batch: Batch) -> Written:
    """The pieces that are to be stored of the fold."""
    projection, rows = batch.projection, batch.rows
    saved = projection.save()
    standing = saved.model_dump_json(by_alias=True, exclude_none=True, exclude={"state"})
    due = bool(rows) and rows[-1].seq // SNAPSHOT_EVERY != (rows[0].seq - 1) // SNAPSHOT_EVERY
    if not due and projection.state_size > SMALL_STATE:
        return Written(standing, None, None, projection.state_size)
    state = saved.state.model_dump_json(by_alias=True, exclude_none=True)
    return Written(
        standing=standing,
        state=state if len(state) <= SMALL_STATE else None,
        snapshot=f'{standing[:-1]},"state":{state}}}' if due else None,
        state_size=len(state),
    )


def values(tenant: str, expected: Position, batch: Batch, fold: Written) -> tuple[Any, ...]:
    """The arguments of `RECORD`."""
    projection = batch.projection
    return (
        tenant,
        projection.cursor.session_id,
        expected.seq,
        expected.head,
        json.dumps(_session_row(projection)),
        fold.standing,
        fold.state,
        fold.snapshot,
        FOLD_VERSION,
        json.dumps([_row_json(row) for row in batch.rows]),
        json.dumps([_entry_json(entry) for entry in batch.entries]),
        json.dumps([_artifact_json(artifact, projection.cursor.seq) for artifact in batch.artifacts]),
        json.dumps([asdict(bundle) for bundle in batch.bundles]),
        json.dumps([{"digest": ref, "body": body.decode()} for ref, body in batch.texts.items()]),
    )


DIFFERS = "SL001"
"""SQLSTATE that `record_projection` raises for a row that is there and differs."""
RECORD = (
    "SELECT record_projection(%s, %s, %s, %s, %s::json, %s, %s, %s, %s, %s::json, %s::json, %s::json,"
    " %s::json, %s::json)"
)


def _session_row(projection: Projection) -> dict[str, Any]:
    place = projection.workplace
    return {
        "seq": projection.cursor.seq,
        "head": projection.head,
        "run_id": projection.cursor.run_id,
        "history_id": projection.cursor.history_id,
        "status": place.status,
        "end_reason": place.end_reason,
        "model": place.config.model_settings.model if place.config else "",
        "title": projection.state.goal.user_goal[:200],
        "created_at": place.created_at,
        "updated_at": place.updated_at,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "message_id": entry.message_id,
        "kind": entry.kind,
        "seq": entry.seq,
        "body": entry.model_dump_json(exclude_none=True),
    }


def _artifact_json(artifact: Artifact, seq: int) -> dict[str, Any]:
    return {
        "artifact_id": artifact.artifact_id,
        "kind": artifact.kind,
        "content_hash": artifact.content_hash,
        "size_bytes": artifact.size_bytes,
        "source_event_id": artifact.source_event_id,
        "seq": seq,
        "body": artifact.model_dump_json(exclude_none=True),
    }
