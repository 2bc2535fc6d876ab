"""The text of a record is bounded whatever the record holds, and says of each section how much it leaves out (spec CMP-9).

What the state card repeats at every build — criteria, plan, the latest files — is brief here; what only the summary tells —
the user's words, what was done, where results lie — gets the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from salience.model.compaction import CompactionRecord
from salience.model.text import preview

LINE_BYTES = 320
GOAL_BYTES = 1_200
SMALLEST_BYTES = 400


def text_of_record(record: CompactionRecord, *, max_bytes: int) -> str:
    """The text a model sees in place of a record's range.

    Args:
        record: the record.
        max_bytes: bytes it may have; hard constraints are named beyond it, too.
    """
    span = record.summarized_range
    head = [
        f"Summary of this session's earlier work (compaction {record.compaction_id}).",
        "The messages it stands for are kept; read_artifact shows the whole record under the id"
        f" compaction:{record.compaction_id}, and any result by the reference given here.",
    ]
    if span is not None:
        head.append(f"It covers messages {span.from_message_id} to {span.to_message_id} and all before them.")
    if record.focus:
        head.append(f"The user asked to pay attention to: {preview(record.focus, LINE_BYTES)}")
    goal = record.goal
    if goal.user_goal:
        head += ["Goal:", preview(goal.user_goal, min(GOAL_BYTES, max(SMALLEST_BYTES, max_bytes // 4)))]
    head += _whole("Hard constraints:", record.constraints.hard)
    lines = list(head)
    room = max_bytes - sum(len(line.encode()) + 1 for line in lines)
    sections = list(_sections(record))
    for at, (title, items) in enumerate(sections):
        # Every section may use an even share of what is left, and hands on what it does not use.
        share = room // max(1, min(3, len(sections) - at))
        shown, used = _fitting(title, items, share)
        lines += shown
        room -= used
    return "\n".join(lines)


def _sections(record: CompactionRecord) -> Iterable[tuple[str, list[str]]]:
    """The sections in the order in which they get room; items newest first where the newest matter most."""
    if record.goal.current_task and record.goal.current_task != record.goal.user_goal:
        yield "Current task:", [record.goal.current_task]
    yield "Soft constraints:", list(record.constraints.soft)
    yield "The user prefers:", list(record.constraints.user_preferences)
    yield "The user said earlier, latest first:", [_quoted(s.text, s.ref) for s in reversed(record.said)]
    yield "Open questions:", list(record.open_questions)
    yield "In progress:", list(record.progress.in_progress)
    yield "Next:", list(record.next_steps)
    yield "Done, latest first:", list(reversed(record.progress.done))
    yield (
        f"Files changed ({len(record.files.modified)}):",
        [
            f"{file.path}{f' — {file.change_summary}' if file.change_summary else ''}"
            for file in reversed(record.files.modified)
        ],
    )
    yield (
        "Calls that failed, latest first:",
        [
            f"{e.name} {e.kind}{f', after {e.retries} earlier failures' if e.retries else ''}: {e.message}"
            for e in reversed(record.errors)
        ],
    )
    yield "Decisions, latest first:", [f"{d.decision} — {d.rationale_summary}" for d in reversed(record.decisions)]
    yield (
        "Facts, latest first:",
        [f"{fact.content}{'' if fact.verified else ' (assumed)'}" for fact in reversed(record.facts)],
    )
    yield (
        "Results worth finding again, latest first:",
        [
            f"{r.name} {r.tool_call_id}{f' [blob {r.artifact_ref}]' if r.artifact_ref else ''}: {r.summary}"
            for r in reversed(record.tools.important_results)
        ],
    )
    yield f"Files only read ({len(record.files.read)}):", list(reversed(record.files.read))


def _quoted(text: str, ref: str | None) -> str:
    whole = f" [whole: blob {ref}]" if ref else ""
    return f"“{preview(_one_line(text), LINE_BYTES - 90)}”{whole}"


def _whole(title: str, items: Sequence[str]) -> list[str]:
    return [title, *(f"- {item}" for item in items)] if items else []


def _fitting(title: str, items: Sequence[str], room: int) -> tuple[list[str], int]:
    """As much of a section as there is room for, and the bytes it used."""
    used = len(title.encode()) + 32
    lines: list[str] = []
    for at, item in enumerate(items):
        line = f"- {preview(_one_line(item), LINE_BYTES)}"
        size = len(line.encode()) + 1
        if used + size > room:
            if lines:
                lines.append(f"- … {len(items) - at} more in the record")
            break
        lines.append(line)
        used += size
    return ([title, *lines], used) if lines else ([], 0)


def _one_line(text: str) -> str:
    return " ".join(text.split())
