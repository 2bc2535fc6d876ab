"""A session's record, reduced to what no crash may change: neither ids nor times nor attempts (spec LOOP-3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from salience.model.event import Event

_UNEQUAL = frozenset(
    {
        *("attempt", "duration_ms"),
        # They hold event ids, the session's id or the workspace's path, in clear or hashed.
        *("bundle_id", "bundle_hash", "source", "largest", "environment_ref", "root_session_id"),
        *("compaction_id", "checkpoint_id", "record_ref", "summary_ref", "previous"),
        # The path is part of the text, and no two paths need be equally many tokens.
        *("tokens", "tokens_before", "tokens_after", "problem"),
    }
)


class Fact(NamedTuple):
    """What an event says, wherever and whenever it was said."""

    type: str
    actor: str
    payload: dict[str, Any]


def facts(events: Iterable[Event], workspace: Path) -> list[Fact]:
    """The events of a session in order; calls that ran side by side are put in the order of their ids."""
    found: list[Fact] = []
    for of_tools, stretch in groupby(events, lambda event: event.actor == "tool"):
        ordered = list(stretch)
        if of_tools:
            ordered.sort(key=lambda event: event.causality.tool_call_id or "")
        found += [_fact(event, workspace) for event in ordered]
    return found


def _fact(event: Event, workspace: Path) -> Fact:
    plain = event.payload.model_dump_json().replace(str(workspace), "WORKSPACE")
    return Fact(event.type, event.actor, _equal(json.loads(plain)))


def _equal(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _equal(inner) for name, inner in value.items() if name not in _UNEQUAL}
    return [_equal(inner) for inner in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, scratch files included: none may be left over."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() or path.is_symlink()
    }


_TIMED_OUT = (EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)


def traces(history: Sequence[HistoryEvent]) -> int:
    """How often a history says that a worker was lost: repeated attempts and timeouts."""
    found = 0
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            found += event.activity_task_started_event_attributes.attempt - 1
        found += event.event_type in _TIMED_OUT
    return found


def recovered(histories: Iterable[Sequence[HistoryEvent]], moments: Sequence[float]) -> list[float | None]:
    """The seconds from each moment to the next activity that ended well; None where none was left to do."""
    ended = sorted(
        event.event_time.ToNanoseconds() / 1e9
        for history in histories
        for event in history
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    )
    return [next((at - moment for at in ended if at > moment), None) for moment in moments]


def recoveries(histories: Iterable[Sequence[HistoryEvent]], deaths: Sequence[float]) -> str:
    """The same in words, after how many deaths it was."""
    took = [f"{s:.1f} s" if s is not None else "nothing left to do" for s in recovered(histories, deaths)]
    return f"{len(deaths)} kill{'' if len(deaths) == 1 else 's'}, recovery {', '.join(took) or '-'}"
