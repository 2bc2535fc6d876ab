"""What the system knows as typed facts is written into a record by code, so no model's answer can lose it (spec CMP-6).

A record carries on from the one before it: what that one named is named here too, or `left_behind` says how much is not,
and why (spec CMP-8). Facts, decisions, files, constraints and questions come whole from the state and are never bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from salience.model.compaction import (
    CompactionRecord,
    ImportantResult,
    LeftBehind,
    ModifiedFile,
    Progress,
    RecordedError,
    RecordFiles,
    RecordGoal,
    RecordProvenance,
    RecordTools,
    Saying,
    SummarizedRange,
)
from salience.model.state import State
from salience.model.text import preview
from salience.projection.transcript import Entry

POLICY = "deterministic-1"
KEPT_RESULTS = 40
KEPT_ERRORS = 100
KEPT_SAYINGS = 400
KEPT_STEPS_DONE = 400
NOTABLE_BYTES = 1_024
"""A smaller result is not worth finding again, unless it is all there is."""
PROGRESS_NOTES = 12

Item = TypeVar("Item")


def record_of(
    *,
    compaction_id: str,
    session_id: str,
    state: State,
    entries: Sequence[Entry],
    leaving: Sequence[Entry],
    first_kept: str,
    previous: CompactionRecord | None,
    focus: str = "",
    tokens_before: int = 0,
    tokens_after: int = 0,
) -> CompactionRecord:
    """The record of a range of messages.

    Args:
        compaction_id: its id.
        session_id: the session.
        state: the state at the compaction.
        entries: the messages of the range, in order; it starts where the previous record's verbatim history started.
        leaving: user messages that leave the view with it, in order.
        first_kept: message id of the first message that stays verbatim.
        previous: the record that this one carries on.
        focus: what the user asked to pay attention to.
        tokens_before: tokens of the view without it.
        tokens_after: tokens of the view with it.
    """
    left: list[LeftBehind] = []
    results = _latest(
        "important results", previous.tools.important_results if previous else (), _results(entries), KEPT_RESULTS, left
    )
    errors = _latest(
        "errors", previous.errors if previous else (), _errors(entries, state, previous), KEPT_ERRORS, left
    )
    said = _latest("user messages", previous.said if previous else (), map(_saying, leaving), KEPT_SAYINGS, left)
    done, doing, ahead = _steps(state)
    notes = _notes(entries)
    return CompactionRecord(
        compaction_id=compaction_id,
        session_id=session_id,
        summarized_range=SummarizedRange(from_message_id=entries[0].message_id, to_message_id=entries[-1].message_id)
        if entries
        else None,
        first_kept_message=first_kept,
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        goal=RecordGoal(
            user_goal=state.goal.user_goal,
            user_goal_ref=state.goal.user_goal_ref,
            current_task=state.goal.current_task or state.goal.user_goal or None,
        ),
        constraints=state.constraints,
        progress=Progress(
            done=_latest(
                "notes on what was done",
                previous.progress.done if previous else (),
                [item for item in (*done, *notes) if previous is None or item not in previous.progress.done],
                KEPT_STEPS_DONE,
                left,
            ),
            in_progress=doing or ((state.goal.current_task,) if state.goal.current_task else ()),
        ),
        plan=state.plan.steps,
        files=RecordFiles(
            read=tuple(path for path, file in state.files.items() if file.read and not file.modified),
            modified=tuple(
                ModifiedFile(path=path, change_summary=file.change_summary, content_hash=file.content_hash)
                for path, file in state.files.items()
                if file.modified
            ),
        ),
        tools=RecordTools(important_results=results),
        errors=errors,
        facts=state.facts,
        decisions=state.decisions,
        open_questions=tuple(str(asked) for asked in state.open_questions),
        next_steps=ahead or _unplanned(state),
        said=said,
        focus=focus,
        left_behind=tuple(left),
        provenance=RecordProvenance(
            source_event_ids=tuple(dict.fromkeys(entry.event_id for entry in entries)),
            message_ids=tuple(entry.message_id for entry in entries),
            policy=POLICY,
            previous=previous.compaction_id if previous else None,
        ),
    )


def _latest(
    what: str, before: Sequence[Item], new: Iterable[Item], limit: int, left: list[LeftBehind]
) -> tuple[Item, ...]:
    """The carried and the new items, the oldest beyond a limit left behind by name."""
    items = [*before, *new]
    if len(items) > limit:
        count = len(items) - limit
        left.append(
            LeftBehind(what=what, count=count, why=f"a record names the latest {limit}; the log has all of them")
        )
    return tuple(items[-limit:])


def _steps(state: State) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The plan's steps as done, in progress and ahead."""
    named: dict[str, list[str]] = {"done": [], "in_progress": [], "ahead": []}
    for step in state.plan.steps:
        place = {"done": "done", "skipped": "done", "in_progress": "in_progress"}.get(step.status, "ahead")
        mark = {"skipped": " (skipped)", "blocked": " (blocked)"}.get(step.status, "")
        named[place].append(f"{step.step_id}: {step.title}{mark}")
    return tuple(named["done"]), tuple(named["in_progress"]), tuple(named["ahead"])


def _unplanned(state: State) -> tuple[str, ...]:
    """What comes next where no plan says so."""
    doing = [f"Go on with {step.step_id}: {step.title}" for step in state.plan.steps if step.status == "in_progress"]
    task = state.goal.current_task or state.goal.user_goal
    return tuple(doing) or ((go_on_with(task),) if task else ())


def go_on_with(task: str) -> str:
    """The next step where no plan names one."""
    return f"Go on with: {preview(task, 500)}"


def _notes(entries: Sequence[Entry]) -> list[str]:
    """What the model said of its work, at the places where it said something; the latest of the range."""
    said = [entry.preview for entry in entries if entry.kind == "response" and entry.preview]
    return list(dict.fromkeys(said))[-PROGRESS_NOTES:]


def _results(entries: Sequence[Entry]) -> list[ImportantResult]:
    """Results with something worth finding again; where there are none, the latest of all."""
    results = [entry for entry in entries if entry.kind == "result" and not entry.is_error and entry.tool_call_id]
    notable = [entry for entry in results if entry.full_ref or entry.size_bytes >= NOTABLE_BYTES] or results[-3:]
    return [
        ImportantResult(
            tool_call_id=entry.tool_call_id or "",
            name=entry.tool_name or "",
            summary=f"{entry.size_bytes} bytes: {entry.preview}" if entry.preview else f"{entry.size_bytes} bytes",
            artifact_ref=entry.full_ref or entry.ref,
            message_id=entry.message_id,
        )
        for entry in notable
    ]


def _errors(entries: Sequence[Entry], state: State, previous: CompactionRecord | None) -> list[RecordedError]:
    """Every failed call of the range, and what the state knows of each."""
    known = {failure.tool_call_id: failure for failure in state.tool_failures}
    before = {error.tool_call_id for error in previous.errors} if previous else set[str]()
    found: list[RecordedError] = []
    for entry in entries:
        if entry.kind != "result" or not entry.is_error or (entry.tool_call_id or "") in before:
            continue
        failure = known.get(entry.tool_call_id or "")
        found.append(
            RecordedError(
                tool_call_id=entry.tool_call_id or "",
                name=entry.tool_name or "",
                kind=failure.kind if failure else "error",
                message=(failure.message if failure else "") or entry.preview or entry.text or "",
                retries=failure.retries if failure else 0,
            )
        )
    return found


def _saying(entry: Entry) -> Saying:
    return Saying(
        message_id=entry.message_id,
        text=entry.text if entry.text is not None else entry.preview,
        ref=entry.ref,
        size_bytes=entry.size_bytes,
    )
