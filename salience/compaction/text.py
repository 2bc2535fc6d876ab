"""The text of a record is bounded whatever the record holds, and each section says how much it leaves out (spec CMP-9).

What every bundle repeats beside it — the goal, hard constraints, the plan, the latest files — may be brief here; what only
the summary tells — the user's words, what was done, where results lie — gets the room.
"""

from __future__ import annotations

from collections.abc import Iterator

from salience.context.sections import one_line, section
from salience.context.tokens import Tokenizer
from salience.model.compaction import CompactionRecord
from salience.model.text import preview

LINE_BYTES = 320
GOAL_BYTES = 1_200
SHARES = 3
"""A section may use one part in three of what is left, so that none starves those after it; the last ones use all."""


def text_of_record(record: CompactionRecord, *, max_tokens: int, tokenizer: Tokenizer) -> str:
    """The text a model sees in place of a record's range.

    Args:
        record: the record.
        max_tokens: tokens it may have, counted line by line; the three lines that say what it is stand in any case.
        tokenizer: what counts.
    """
    lines = _head(record)
    room = max_tokens - sum(map(tokenizer.lines, lines))
    sections = [*sections_of(record), _files_read(record)]
    sections = [(title, items) for title, items in sections if items]
    for at, (title, items) in enumerate(sections):
        shown, used = section(
            title,
            items,
            room // min(SHARES, len(sections) - at),
            line_bytes=GOAL_BYTES if at == 0 else LINE_BYTES,
            size=tokenizer.lines,
            more="more in the record",
        )
        lines += shown
        room -= used
    return "\n".join(lines)


def _head(record: CompactionRecord) -> list[str]:
    span = record.summarized_range
    lines = [
        f"Summary of this session's earlier work (compaction {record.compaction_id}).",
        "The messages it stands for are kept; read_artifact shows the whole record under the id"
        f" compaction:{record.compaction_id}, and any result by the reference given here.",
    ]
    if span is not None:
        lines.append(f"It covers messages {span.from_message_id} to {span.to_message_id} and all before them.")
    return lines


def sections_of(record: CompactionRecord) -> Iterator[tuple[str, list[str]]]:
    """What a record names, by section, in the order in which they get room; items newest first where the newest matter most.

    Files that were only read are not among it: looking again is cheap.
    """
    goal = record.goal
    yield "Goal:", [goal.user_goal] if goal.user_goal else []
    yield "The user asked to pay attention to:", [record.focus] if record.focus else []
    yield "Hard constraints:", list(record.constraints.hard)
    yield "Current task:", [goal.current_task] if goal.current_task and goal.current_task != goal.user_goal else []
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


def _files_read(record: CompactionRecord) -> tuple[str, list[str]]:
    return f"Files only read ({len(record.files.read)}):", list(reversed(record.files.read))


def _quoted(text: str, ref: str | None) -> str:
    whole = f" [whole: blob {ref}]" if ref else ""
    return f"“{preview(one_line(text), LINE_BYTES - 90)}”{whole}"
