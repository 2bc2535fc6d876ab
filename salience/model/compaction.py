"""A compaction record says what it summarises and where verbatim history starts; the log stays untouched (spec CMP-2)."""

from __future__ import annotations

from salience.model.frozen import Frozen, Names


class SummarizedRange(Frozen):
    """First and last message that a summary stands for."""

    from_message_id: str
    to_message_id: str


class CompactionRecord(Frozen):
    """The part of a record that the invariants speak of."""

    compaction_id: str
    session_id: str
    summarized_range: SummarizedRange | None
    first_kept_message_id: str
    summary_message_id: str
    removed_message_ids: Names = ()
    source_event_ids: Names = ()
