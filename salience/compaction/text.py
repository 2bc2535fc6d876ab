"""The text of a record is bounded whatever the record holds, and each section says how much it leaves out (spec CMP-9).

What every bundle repeats beside it — constraints, open questions, the plan — gets the room that is left; what only the
summary tells — the user's words, what was done, what failed, where results lie — gets it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from salience.compaction.record import go_on_with
from salience.context.sections import one_line, section
from salience.context.tokens import Tokenizer
from salience.model.compaction import CompactionRecord
from salience.model.text import preview

LINE_BYTES = 320
SHARES = 3
"""A section may use one part in three of what is left, so that none starves those after it; the last ones use all."""


class Section(NamedTuple):
    """A part of the text; `repeated` where every bundle says the same beside the summary."""

    title: str
    items: list[str]
    repeated: bool = False


def text_of_record(record: CompactionRecord, *, max_tokens: int, tokenizer: Tokenizer) -> str:
    """The text a model sees in place of a record's range.

    Args:
        record: the record.
        max_tokens: tokens it may have, counted line by line; the lines that say what it is stand in any case.
        tokenizer: what counts.
    """
    head = _head(record)
    room = max_tokens - sum(map(tokenizer.lines, head))
    sections = [part for part in (*sections_of(record), _files_read(record)) if part.items]
    shown: dict[int, list[str]] = {}
    for done, at in enumerate(sorted(range(len(sections)), key=lambda at: sections[at].repeated)):
        shown[at], used = section(
            sections[at].title,
            sections[at].items,
            room // min(SHARES, len(sections) - done),
            line_bytes=LINE_BYTES,
            size=tokenizer.lines,
            more="more in the record",
        )
        room -= used
    return "\n".join([*head, *(line for at in sorted(shown) for line in shown[at])])


def _head(record: CompactionRecord) -> list[str]:
    span = record.summarized_range
    covers = f": messages {span.from_message_id} to {span.to_message_id} and all before them" if span else ""
    return [
        f"Summary of this session's earlier work{covers}.",
        f"All of it is kept: read_artifact shows the whole record under compaction:{record.compaction_id}, and a result"
        " under its reference.",
    ]


def sections_of(record: CompactionRecord) -> Iterator[Section]:
    """What a record names, by section; items newest first where the newest matter most.

    Files that were only read are not among it: looking again is cheap. What comes next is told once, however often the
    record names it.
    """
    task = record.goal.current_task
    yield Section("Goal:", [record.goal.user_goal] if record.goal.user_goal else [])
    yield Section("The user asked to pay attention to:", [record.focus] if record.focus else [])
    yield Section("Hard constraints:", list(record.constraints.hard), repeated=True)
    yield Section("Soft constraints:", list(record.constraints.soft), repeated=True)
    yield Section("The user prefers:", list(record.constraints.user_preferences), repeated=True)
    yield Section("The user said earlier, latest first:", [_quoted(s.text, s.ref) for s in reversed(record.said)])
    yield Section("Open questions:", list(record.open_questions), repeated=True)
    yield Section("Current task:", [task] if task and task != record.goal.user_goal else [], repeated=True)
    yield Section("In progress:", [step for step in record.progress.in_progress if step != task], repeated=True)
    yield Section("Next:", [step for step in record.next_steps if step != go_on_with(task or "")], repeated=True)
    yield Section("Done, latest first:", list(reversed(record.progress.done)))
    yield Section(
        f"Files changed ({len(record.files.modified)}):",
        [
            f"{file.path}{f' — {file.change_summary}' if file.change_summary else ''}"
            for file in reversed(record.files.modified)
        ],
    )
    yield Section(
        "Calls that failed, latest first:",
        [
            f"{e.name} {e.kind}{f', after {e.retries} earlier failures' if e.retries else ''}: {e.message}"
            for e in reversed(record.errors)
        ],
    )
    yield Section(
        "Decisions, latest first:",
        [
            f"{d.decision}{'' if d.verified else ' (rests on an assumption)'} — {d.rationale_summary}"
            for d in reversed(record.decisions)
        ],
    )
    yield Section(
        "Facts, latest first:",
        [f"{fact.content}{'' if fact.verified else ' (assumed)'}" for fact in reversed(record.facts)],
    )
    yield Section(
        "Results worth finding again, latest first:",
        [
            f"{r.name} {r.tool_call_id}{f' [blob {r.artifact_ref}]' if r.artifact_ref else ''}: {r.summary}"
            for r in reversed(record.tools.important_results)
        ],
    )


def _files_read(record: CompactionRecord) -> Section:
    return Section(f"Files only read ({len(record.files.read)}):", list(reversed(record.files.read)), repeated=True)


def _quoted(text: str, ref: str | None) -> str:
    whole = f" [whole: blob {ref}]" if ref else ""
    return f"“{preview(one_line(text), LINE_BYTES - 90)}”{whole}"
