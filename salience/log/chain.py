"""The journal's rows form a hash chain: one changed byte breaks it at one seq (spec EVT-4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from salience.model.canonical import canonical_json, digest
from salience.model.event import Event


@dataclass(frozen=True, slots=True)
class Row:
    """One journal row as stored: canonical texts, so that the bytes that were hashed are the bytes that are kept."""

    seq: int
    event_id: str
    run_id: str
    type: str
    metadata: str
    payload: str | None
    payload_digest: str
    hash: str


def link(previous: str, metadata: bytes, payload_digest: str) -> str:
    """The hash of a row: sha256 over the previous hash, the canonical metadata and the payload's digest."""
    return digest(previous.encode() + metadata + payload_digest.encode())


def row_of(event: Event, previous: str, decoder_version: int) -> Row:
    """The row an event becomes after a row with hash `previous` (empty for the first)."""
    metadata = canonical_json(metadata_of(event, decoder_version))
    payload = canonical_json(event.payload.plain())
    payload_digest = digest(payload)
    return Row(
        seq=event.seq,
        event_id=event.event_id,
        run_id=event.run_id,
        type=event.type,
        metadata=metadata.decode(),
        payload=payload.decode(),
        payload_digest=payload_digest,
        hash=link(previous, metadata, payload_digest),
    )


def metadata_of(event: Event, decoder_version: int) -> dict[str, Any]:
    """Everything of an event but its payload, as JSON data."""
    return {
        "schema_version": event.schema_version,
        "decoder_version": decoder_version,
        "event_id": event.event_id,
        "session_id": event.session_id,
        "run_id": event.run_id,
        "parent_event_id": event.parent_event_id,
        "seq": event.seq,
        "timestamp": event.timestamp,
        "type": event.type,
        "actor": event.actor,
        "causality": event.causality.plain(),
    }


def event_of(row: Row) -> Event:
    """The event a row holds; its payload must not be erased."""
    metadata = json.loads(row.metadata)
    metadata.pop("decoder_version", None)
    return Event.model_validate({**metadata, "payload": json.loads(row.payload or "{}")})


def fault_of(row: Row, previous: str, seq: int) -> str | None:
    """What is wrong with a row that should stand at `seq` after a row with hash `previous`; None when nothing is."""
    if row.seq != seq:
        return f"row {seq} is missing; row {row.seq} stands in its place"
    if row.payload is not None and digest(row.payload) != row.payload_digest:
        return f"the payload of row {seq} does not match its digest"
    if link(previous, row.metadata.encode(), row.payload_digest) != row.hash:
        return f"the hash of row {seq} does not follow from the row before it and its own metadata"
    return None
