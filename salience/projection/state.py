"""State is a pure fold: the same events give the same state, whoever folds them and however often (spec PRJ-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from salience.model import event as ev
from salience.model.artifact import ArtifactKind
from salience.model.state import FileState, Goal, Plan, State, StateArtifact, StatePatch, ToolFailure

_Item = TypeVar("_Item")

FOLD_VERSION = 3
"""Raised whenever the same events would fold to another state: a stored state of another version is folded again."""
GOAL_BYTES = 4_000
KEPT_FAILURES = 50
KEPT_ARTIFACTS = 300
"""Outputs and diffs, one or more a call, leave the state beyond this, oldest first; the store's index has them all.

Files never leave it (INV 4)."""


def fold_state(state: State, event: ev.Event) -> State:
    """The state after one more event.

    Args:
        state: the state after all events before this one.
        event: the next event of the session.

    Returns:
        A new state, or the same one when the event says nothing about it; `source_event_id` names the last event that
        changed it and `version` counts the changes.
    """
    change = _change(state, event)
    if not change:
        return state
    return state.model_copy(update={**change, "source_event_id": event.event_id, "version": state.version + 1})


def _change(state: State, event: ev.Event) -> dict[str, Any]:
    match event.payload:
        case ev.SessionStarted(config=config) | ev.SessionConfigured(config=config):
            if config is None:
                return {}
            return {
                "constraints": state.constraints.model_copy(update={"hard": config.hard_constraints}),
                "goal": state.goal.model_copy(update={"acceptance_criteria": config.acceptance_criteria}),
            }
        case ev.UserPromptSubmitted() as prompt:
            # Whatever the user says next is the answer: nobody but the model can judge whether it answers.
            return {"goal": _goal(state.goal, prompt), **({"open_questions": ()} if state.open_questions else {})}
        case ev.FileRead() as read:
            known = state.files.get(read.path)
            modified = known.modified if known else False
            return {"files": {**state.files, read.path: _file(event, read.content_hash, True, modified, known)}}
        case ev.FileWritten() as written:
            known = state.files.get(written.path)
            summary = f"{written.change} by {written.tool_call_id}"
            file = _file(event, written.after_hash, known.read if known else False, True, known)
            return {
                "files": {**state.files, written.path: file.model_copy(update={"change_summary": summary})},
                "artifacts": _with_artifact(state, f"file:{written.path}", "file", written.path, summary),
            }
        case ev.DiffApplied() as diff:
            ref = diff.diff_ref or diff.effects_ref
            summary = f"{diff.files} files, +{diff.added} -{diff.removed} by {diff.tool_call_id}"
            return {"artifacts": _with_artifact(state, f"diff:{diff.tool_call_id}", "diff", f"blob:{ref}", summary)}
        case ev.ToolCallFinished() as done:
            return _output(state, done)
        case ev.ToolCallFailed() as failed:
            earlier = [f for f in state.tool_failures if f.name == failed.name]
            failure = ToolFailure(
                tool_call_id=failed.tool_call_id,
                name=failed.name,
                kind=failed.kind,
                message=failed.preview,
                event_id=event.event_id,
                retries=earlier[-1].retries + 1 if earlier else 0,
            )
            return {**_output(state, failed), "tool_failures": (*state.tool_failures, failure)[-KEPT_FAILURES:]}
        case ev.CompactionCompleted(checkpoint=checkpoint):
            return {"last_compaction_id": checkpoint.compaction_id}
        case ev.CompactionRolledBack(checkpoint=checkpoint):
            return {"last_compaction_id": checkpoint.compaction_id if checkpoint else None}
        case ev.StateUpdated(patch=patch):
            return _patched(state, patch)
        case _:
            return {}


def _goal(goal: Goal, prompt: ev.UserPromptSubmitted) -> Goal:
    """The first thing the user asked for is the goal; what came last is the current task until a plan says otherwise."""
    said = (
        prompt.text
        if len(prompt.text.encode()) <= GOAL_BYTES
        else prompt.text.encode()[:GOAL_BYTES].decode("utf-8", "ignore") + "…"
    )
    if goal.user_goal:
        return goal.model_copy(update={"current_task": said})
    whole = prompt.text_ref if said == prompt.text or prompt.text_ref else None
    return goal.model_copy(update={"user_goal": said, "user_goal_ref": whole, "current_task": said})


def _patched(state: State, patch: StatePatch) -> dict[str, Any]:
    """What a patch changes. It was validated when its tool ran; here it is only applied (spec PRJ-3)."""
    change: dict[str, Any] = {}
    if patch.plan is not None:
        change["plan"] = patch.plan
        change["goal"] = state.goal.model_copy(update={"current_task": _current_task(patch.plan)})
    if patch.facts:
        change["facts"] = _superseding(state.facts, patch.facts, lambda fact: fact.fact_id)
    if patch.decisions:
        change["decisions"] = _superseding(state.decisions, patch.decisions, lambda made: made.decision_id)
    if patch.open_questions or patch.resolved_questions:
        asked = _superseding(state.open_questions, patch.open_questions or (), lambda asked: asked.question_id)
        resolved = patch.resolved_questions or ()
        change["open_questions"] = tuple(one for one in asked if one.question_id not in resolved)
    return change


def _superseding(known: tuple[_Item, ...], new: tuple[_Item, ...], id_of: Callable[[_Item], str]) -> tuple[_Item, ...]:
    """The known and the new; a new one with the id of a known one replaces it and counts as the latest."""
    ids = {id_of(item) for item in new}
    return (*(item for item in known if id_of(item) not in ids), *new)


def _current_task(plan: Plan) -> str | None:
    for step in plan.steps:
        if step.step_id == plan.current_step_id:
            return step.title
    for step in plan.steps:
        if step.status in ("in_progress", "pending"):
            return step.title
    return None


def _file(event: ev.Event, content_hash: str | None, read: bool, modified: bool, known: FileState | None) -> FileState:
    return FileState(
        read=read or bool(known and known.read),
        modified=modified,
        content_hash=content_hash,
        last_event_id=event.event_id,
        last_seq=event.seq,
        change_summary=known.change_summary if known else "",
    )


def _output(state: State, ended: ev.ToolCallFinished | ev.ToolCallFailed) -> dict[str, Any]:
    """Only an output that was cut for the model is an artifact of its own; a short one stands whole in the transcript."""
    if ended.full_ref is None:
        return {}
    kind: ArtifactKind = "command_log" if ended.name == "run_command" else "tool_output"
    summary = f"{ended.name}, {ended.output_bytes} bytes"
    return {"artifacts": _with_artifact(state, f"output:{ended.tool_call_id}", kind, f"blob:{ended.full_ref}", summary)}


def _with_artifact(
    state: State, artifact_id: str, kind: ArtifactKind, path_or_uri: str, summary: str
) -> tuple[StateArtifact, ...]:
    artifact = StateArtifact(artifact_id=artifact_id, kind=kind, path_or_uri=path_or_uri, summary=summary)
    kept = [a for a in state.artifacts if a.artifact_id != artifact_id]
    kept.append(artifact)
    calls = [at for at, known in enumerate(kept) if known.kind != "file"]
    if len(calls) > KEPT_ARTIFACTS:
        del kept[calls[0]]
    return tuple(kept)
