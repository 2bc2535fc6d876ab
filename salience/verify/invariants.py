"""The invariants as functions from a record to findings: the same code in tests, in `verify` and in the worker (spec INV)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from salience.model import event as ev
from salience.model.bundle import Segment
from salience.model.compaction import Checkpoint, CompactionRecord
from salience.model.message import Message, ToolCallBlock, ToolResultBlock
from salience.model.state import State
from salience.projection.transcript import Entry
from salience.verify.findings import Finding


def results_follow_calls(events: Iterable[ev.Event]) -> list[Finding]:
    """INV 1: every tool result has a preceding tool call, and a call has at most one result."""
    asked: set[str] = set()
    ended: set[str] = set()
    findings: list[Finding] = []
    for event in events:
        match event.payload:
            case ev.ToolCallRequested(tool_call_id=call):
                asked.add(call)
                ended.discard(call)
            case ev.ToolCallFinished(tool_call_id=call) | ev.ToolCallFailed(tool_call_id=call):
                if call not in asked:
                    findings.append(_finding("INV 1", f"result of {call} without a call before it", event.seq))
                elif call in ended:
                    findings.append(_finding("INV 1", f"second result of {call}", event.seq))
                ended.add(call)
            case _:
                pass
    return findings


def transcript_pairs(entries: Sequence[Entry]) -> list[Finding]:
    """INV 1 for the transcript: results stand right behind the response that asked, in one group."""
    findings: list[Finding] = []
    group = ""
    for entry in entries:
        if entry.kind == "response":
            group = entry.group
        elif entry.kind == "result" and entry.group != group:
            findings.append(_finding("INV 1", f"result {entry.message_id} stands outside its group", entry.seq))
        elif entry.kind == "prompt":
            group = ""
    return findings


def message_pairs(messages: Iterable[Message]) -> list[Finding]:
    """INV 1 for messages of any origin: results name calls that came before them."""
    asked: set[str] = set()
    findings: list[Finding] = []
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolCallBlock):
                asked.add(block.tool_call_id)
            elif isinstance(block, ToolResultBlock) and block.tool_call_id not in asked:
                findings.append(_finding("INV 1", f"result of {block.tool_call_id} without a call before it"))
    return findings


def keeps_pending_calls(record: CompactionRecord, messages: Iterable[Message]) -> list[Finding]:
    """INV 2: no pending tool call is removed by a compaction."""
    answered = {b.tool_call_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)}
    removed = set(record.provenance.message_ids)
    return [
        _finding("INV 2", f"{record.compaction_id} removes the pending call {block.tool_call_id}")
        for message in messages
        if message.message_id in removed
        for block in message.content
        if isinstance(block, ToolCallBlock) and block.tool_call_id not in answered
    ]


def names_its_range(record: CompactionRecord) -> list[Finding]:
    """INV 3: every summary names its source range."""
    known = record.summarized_range
    if known is None or not known.from_message_id or not known.to_message_id:
        return [_finding("INV 3", f"{record.compaction_id} does not name the messages it summarises")]
    return []


def stands_for(record: CompactionRecord, checkpoint: Checkpoint, entries: Sequence[Entry]) -> list[Finding]:
    """INV 3: the record is of the checkpoint that names it, and of the very messages in its range."""
    named = (record.compaction_id, record.first_kept_message, record.tokens_after)
    if named != (checkpoint.compaction_id, checkpoint.first_kept_message_id, checkpoint.tokens_after):
        return [_finding("INV 3", f"the record of {checkpoint.compaction_id} is another one's")]
    if record.provenance.message_ids != tuple(entry.message_id for entry in entries):
        return [_finding("INV 3", f"{record.compaction_id} does not name the messages that its range holds")]
    return []


def splits_no_group(checkpoint: Checkpoint, entries: Sequence[Entry]) -> list[Finding]:
    """INV 2: no call stands before a cut with its result behind it, and none without a result before it."""
    at = checkpoint.first_kept
    if not 0 < at < len(entries) or entries[at].kind != "result":
        return []
    return [_finding("INV 2", f"{checkpoint.compaction_id} cuts {entries[at].message_id} off its call")]


def transcript_is_kept(folded: Sequence[Entry], stored: Sequence[Entry]) -> list[Finding]:
    """INV 8: whatever was compacted, the stored transcript holds every message that the events tell of, unchanged."""
    for entry, kept in zip(folded, stored, strict=False):
        if entry != kept:
            return [_finding("INV 8", f"the stored message {kept.message_id} is not what the events tell", entry.seq)]
    return []


def files_are_known(events: Iterable[ev.Event], state: State) -> list[Finding]:
    """INV 4: every file write is in state.artifacts."""
    known = {artifact.path_or_uri for artifact in state.artifacts if artifact.kind == "file"}
    return [
        _finding("INV 4", f"the write of {event.payload.path} is not in the state's artifacts", event.seq)
        for event in events
        if isinstance(event.payload, ev.FileWritten) and event.payload.path not in known
    ]


def essentials_are_in(segments: Sequence[Segment], request: str | None, state: State, seq: int) -> list[Finding]:
    """INV 5: the current request, the active goal and the open questions are in the context.

    Args:
        segments: the bundle's.
        request: event id of the current request; None when nobody has asked for anything yet.
        state: the state as of the bundle.
        seq: where the bundle stands in the log.
    """
    findings: list[Finding] = []
    if request is not None and not any(
        request in segment.source_refs and segment.role == "user" and not segment.masked for segment in segments
    ):
        findings.append(_finding("INV 5", f"the current request {request} is not in the context", seq))
    if (state.goal.user_goal or state.open_questions) and not any(s.section == "state_card" for s in segments):
        findings.append(_finding("INV 5", "the active goal and open questions are not in the context", seq))
    return findings


def is_append_only(before: Sequence[str], after: Sequence[str]) -> list[Finding]:
    """INV 7: a later journal starts with the hashes of an earlier one."""
    for seq, (old, new) in enumerate(zip(before, after, strict=False), start=1):
        if old != new:
            return [_finding("INV 7", f"row {seq} was changed", seq)]
    if len(after) < len(before):
        return [_finding("INV 7", f"rows after {len(after)} are gone", len(after) + 1)]
    return []


def leaves_transcript_alone(
    record: CompactionRecord, before: Sequence[Message], after: Sequence[Message]
) -> list[Finding]:
    """INV 8: a summary cannot overwrite the transcript: every message is there afterwards, and unchanged."""
    there = {message.message_id: message for message in after}
    findings: list[Finding] = []
    for message in before:
        if there.get(message.message_id) != message:
            findings.append(_finding("INV 8", f"{record.compaction_id} changed or removed {message.message_id}"))
    return findings


def segments_are_explained(segments: Iterable[Segment], seq: int) -> list[Finding]:
    """INV 12: every segment has a reason and a source."""
    return [
        _finding("INV 12", f"segment {segment.segment_id} has no {'reason' if not segment.reason else 'source'}", seq)
        for segment in segments
        if not segment.reason or not segment.source_refs
    ]


def _finding(rule: str, message: str, seq: int | None = None) -> Finding:
    return Finding(rule=rule, message=message, seq=seq)
