"""What an activity's result says, as events in the order the log has them: one function for each kind of result (EVT-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from salience.model import calls
from salience.model import event as ev
from salience.model.canonical import digest
from salience.model.compaction import CompactionChecks
from salience.model.tool import FileEffect, ToolOutcome

Slotted = tuple[str, ev.Payload, ev.Causality]
"""Slot, payload and what the event is about."""
NOTHING: Final = ev.Causality()


def compacted(asked: calls.Compact, done: calls.Compacted) -> Slotted:
    """The end of a compaction: a checkpoint, or why there is none."""
    if done.checkpoint is not None:
        return (
            "compacted",
            ev.CompactionCompleted(
                trigger=asked.trigger,
                checkpoint=done.checkpoint,
                policy=done.policy,
                checks=done.checks or CompactionChecks(),
                duration_ms=done.duration_ms,
            ),
            ev.Causality(compaction_id=done.checkpoint.compaction_id),
        )
    failed = ev.CompactionFailed(
        trigger=asked.trigger,
        kind=done.kind or "activity_failed",
        message=done.message,
        evidence_ref=done.evidence_ref,
        checks=done.checks,
        tokens_before=done.tokens_before,
        duration_ms=done.duration_ms,
    )
    return "compaction_failed", failed, NOTHING


def rolled_back(done: calls.RolledBack) -> Iterator[Slotted]:
    """A rollback that was refused changed nothing, so there is nothing to tell."""
    if done.refused:
        return
    yield (
        "rolled_back",
        ev.CompactionRolledBack(
            compaction_id=done.compaction_id,
            checkpoint=done.checkpoint,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
        ),
        ev.Causality(compaction_id=done.compaction_id),
    )


def ended(outcome: ToolOutcome) -> Iterator[Slotted]:
    """The end of a call and everything it declares: files read and written, the diff, a patch of state."""
    about = ev.Causality(tool_call_id=outcome.tool_call_id, artifact_id=outcome.full_ref or outcome.output_ref)
    common: dict[str, Any] = {
        "tool_call_id": outcome.tool_call_id,
        "name": outcome.name,
        "output_ref": outcome.output_ref,
        "full_ref": outcome.full_ref,
        "output_bytes": outcome.output_bytes,
        "preview": outcome.preview,
        "truncated": outcome.truncated,
        "exit_code": outcome.exit_code,
        "duration_ms": outcome.duration_ms,
    }
    slot = f"ended:{outcome.tool_call_id}"
    if outcome.ok:
        yield slot, ev.ToolCallFinished(**common, finish=outcome.finish), about
    else:
        yield slot, ev.ToolCallFailed(**common, kind=outcome.kind or "error"), about
    call_only = ev.Causality(tool_call_id=outcome.tool_call_id)
    for effect in outcome.effects:
        file_slot, file_event = _file(outcome.tool_call_id, effect)
        yield file_slot, file_event, call_only
    if outcome.diff_ref or outcome.effects_ref:
        yield (
            f"diff:{outcome.tool_call_id}",
            ev.DiffApplied(
                tool_call_id=outcome.tool_call_id,
                diff_ref=outcome.diff_ref,
                files=outcome.effects_count or len(outcome.effects),
                added=outcome.diff_added,
                removed=outcome.diff_removed,
                effects_ref=outcome.effects_ref,
            ),
            ev.Causality(tool_call_id=outcome.tool_call_id, artifact_id=outcome.diff_ref),
        )
    if outcome.state_patch is not None:
        yield (
            f"state:{outcome.tool_call_id}",
            ev.StateUpdated(tool_call_id=outcome.tool_call_id, patch=outcome.state_patch),
            call_only,
        )


def _file(tool_call_id: str, effect: FileEffect) -> tuple[str, ev.Payload]:
    name = digest(effect.path)[:12]
    if effect.op == "read":
        return f"read:{tool_call_id}:{name}", ev.FileRead(
            tool_call_id=tool_call_id, path=effect.path, content_hash=effect.after_hash
        )
    return f"written:{tool_call_id}:{name}", ev.FileWritten(
        tool_call_id=tool_call_id,
        path=effect.path,
        change=effect.op,
        before_hash=effect.before_hash,
        after_hash=effect.after_hash,
        size_bytes=effect.size_bytes,
    )
