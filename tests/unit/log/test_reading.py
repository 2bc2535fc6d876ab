"""A file of any bytes is read as far as it is sound, and everything else is named by its line (spec EVT-7)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.log.lines import MAX_LINE_BYTES, Lines
from salience.log.reading import NewerExport, NoExport
from salience.model.canonical import canonical_json
from tests.unit.log.export_file import BLOBS, FIRST, SESSION, lines, log_of, payloads, read, rows

LINES = lines()
WHOLE = b"".join(LINES)
EVENTS = [number for number, line in enumerate(LINES, start=1) if b'"kind":"event"' in line]


def test_a_whole_file_has_no_faults_and_gives_everything() -> None:
    reading, kept = read(WHOLE)
    assert reading.faults == []
    assert kept == BLOBS
    (section,) = reading.sections
    assert [event.hash for event in section.events] == [row.hash for row in rows()]
    assert section.session_id == SESSION


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_portions_do_not_matter(portion: int) -> None:
    assert read(WHOLE, portion)[0].sections == read(WHOLE)[0].sections


def test_rows_are_named_by_file_and_line_and_follow_each_other() -> None:
    log = log_of(WHOLE)
    assert [row.event_id for row in log.rows] == [f"import:{'f' * 64}:{number}" for number in EVENTS]
    told = [json.loads(row.metadata) for row in log.rows]
    assert [one["parent_event_id"] for one in told] == [None, *(one["event_id"] for one in told[:-1])]
    assert {one["run_id"] for one in told} == {f"import:{'f' * 64}"}
    # The user's words happen to be an event's id: words are no reference.
    assert json.loads(log.rows[1].payload or "")["text"] == FIRST


def test_another_session_id_is_another_session_throughout() -> None:
    log = log_of(WHOLE, "s-new")
    assert all(json.loads(row.metadata)["session_id"] == "s-new" for row in log.rows)
    assert json.loads(log.rows[0].payload or "")["root_session_id"] == "s-new"


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_one_changed_byte_is_found_or_changes_nothing(at: int, byte: int) -> None:
    changed = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    try:
        reading, _ = read(changed)
    except (NewerExport, NoExport):
        return
    if not reading.faults:
        assert changed == WHOLE
        return
    line = WHOLE[:at].count(b"\n") + 1
    pieces = b'"kind":"blob"' in LINES[line - 1]  # what is in pieces can be judged at the last
    assert pieces or any(abs(fault.line - line) <= 1 or fault.line == 1 for fault in reading.faults)
    log = log_of(changed)
    assert len(log.rows) >= len(EVENTS) - 2
    kept = {json.loads(row.payload or "null").get("message_id", "") for row in log.rows}
    assert kept <= {"", "m"}


@settings(max_examples=200, deadline=None)
@given(start=st.integers(0, len(WHOLE)), length=st.integers(0, 2000), junk=st.binary(max_size=60))
def test_any_replaced_stretch_is_no_unexpected_error(start: int, length: int, junk: bytes) -> None:
    changed = WHOLE[:start] + junk + WHOLE[start + length :]
    try:
        reading, kept = read(changed)
    except (NewerExport, NoExport):
        return
    assert reading.faults or changed == WHOLE
    assert all(BLOBS[ref] == data for ref, data in kept.items())
    log_of(changed)


@given(st.integers(0, len(WHOLE) - 1))
@settings(max_examples=200, deadline=None)
def test_a_file_that_was_cut_anywhere_says_so(length: int) -> None:
    try:
        reading, _ = read(WHOLE[:length])
    except NoExport:
        assert length < sum(map(len, LINES[: EVENTS[0]]))
        return
    assert any("cut" in fault.message for fault in reading.faults)
    assert len(log_of(WHOLE[:length]).rows) == sum(len(b"".join(LINES[:n])) <= length + 1 for n in EVENTS)


def _edited(number: int, change: Callable[[dict[str, Any]], None]) -> bytes:
    value = json.loads(LINES[number - 1])
    change(value)
    return b"".join([*LINES[: number - 1], canonical_json(value) + b"\n", *LINES[number:]])


def _flipped(data: str) -> str:
    raw = bytearray(base64.b64decode(data))
    raw[0] ^= 1
    return base64.b64encode(raw).decode()


PROMPT, ENDED = EVENTS[1], EVENTS[-1]
LAST = len(LINES)
PIECE = next(number for number, line in enumerate(LINES, start=1) if b'"kind":"blob"' in line)
DAMAGED = [
    ("edited payload", _edited(PROMPT, lambda v: v["payload"].update(text="forged")), PROMPT, "own hash", 6),
    ("edited metadata", _edited(PROMPT, lambda v: v["metadata"].update(actor="model")), PROMPT, "own hash", 6),
    ("a line lost", b"".join(LINES[: PROMPT - 1] + LINES[PROMPT:]), PROMPT, "event 2 is missing", 6),
    ("a line twice", b"".join(LINES[:PROMPT] + LINES[PROMPT - 1 :]), PROMPT + 1, "repeats line", 7),
    ("the last event lost", b"".join([*LINES[: ENDED - 1], *LINES[ENDED:]]), 1, "events 7 to 7 are missing", 6),
    (
        "two lines changed places",
        b"".join([*LINES[: EVENTS[2] - 1], LINES[EVENTS[3] - 1], LINES[EVENTS[2] - 1], *LINES[EVENTS[3] :]]),
        EVENTS[3],
        "put back",
        7,
    ),
    ("CR LF", WHOLE.replace(b"\n", b"\r\n"), 1, f"{LAST} lines end with CR LF", 7),
    ("a byte order mark", b"\xef\xbb\xbf" + WHOLE, 1, "byte order mark", 7),
    ("no end line", b"".join(LINES[:-1]), LAST, "cut", 7),
    ("no last line feed", WHOLE[:-1], LAST, "cut", 7),
    ("no header", b"".join(LINES[1:]), 1, "no header", 7),
    ("an empty line", b"".join([*LINES[:PROMPT], b"\n", *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    ("NUL", b"".join([*LINES[:PROMPT], b"\x00\n", *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    ("invalid UTF-8", b"".join([*LINES[:PROMPT], b'{"a":"\xff"}\n', *LINES[PROMPT:]]), PROMPT + 1, "not UTF-8", 7),
    ("a surrogate", b"".join([*LINES[:PROMPT], b'{"a":"\\ud800"}\n', *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    ("NaN", b"".join([*LINES[:PROMPT], b'{"a":NaN}\n', *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    ("an endless number", b"".join([*LINES[:PROMPT], b'{"a":1e999}\n', *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    ("deep nesting", b"".join([*LINES[:PROMPT], b"[" * 99_999 + b"\n", *LINES[PROMPT:]]), PROMPT + 1, "not JSON", 7),
    (
        "a line of 20 MB",
        b"".join([*LINES[:PROMPT], b'{"kind":"' + b"x" * 20_000_000 + b'"}\n', *LINES[PROMPT:]]),
        PROMPT + 1,
        "longer than 8 MiB",
        7,
    ),
    (
        "another kind",
        b"".join([*LINES[:PROMPT], b'{"kind":"note"}\n', *LINES[PROMPT:]]),
        PROMPT + 1,
        "no kind of line",
        7,
    ),
    (
        "other words",
        WHOLE.replace(b'{"kind"', b'{ "kind"').replace(b'{"hash"', b'{ "hash"', 1),
        EVENTS[0],
        "altered",
        7,
    ),
    (
        "an altered blob",
        _edited(PIECE, lambda v: v.update(data=_flipped(v["data"]))),
        PIECE + 4,
        "does not match its digest",
        7,
    ),
    ("a blob's piece lost", b"".join(LINES[:PIECE] + LINES[PIECE + 1 :]), PIECE + 1, "without the one before", 7),
    ("a blob's end lost", b"".join(LINES[: PIECE + 1] + LINES[PROMPT - 1 :]), PIECE, "last piece is missing", 7),
    ("no base64", _edited(PIECE, lambda v: v.update(data="!" + v["data"])), PIECE, "not base64", 7),
    ("a blob lost", b"".join(LINES[: PIECE - 1] + LINES[PROMPT - 1 :]), PROMPT - (PROMPT - PIECE), "names blob", 7),
    ("an end that lies", _edited(LAST, lambda v: v.update(events=9)), LAST, "counts", 7),
    ("another head", _edited(1, lambda v: v["head"].update(head="0" * 64)), 1, "another end", 7),
    ("another session's header", _edited(1, lambda v: v.update(session_id="s-other")), 1, "another session", 7),
    ("two exports in one", WHOLE + WHOLE, LAST + 1, "a second export", 7),
    ("an unknown field", _edited(1, lambda v: v.update(more=1)), 1, "not a header line", 7),
]


@pytest.mark.parametrize(("data", "line", "message", "kept"), [d[1:] for d in DAMAGED], ids=[d[0] for d in DAMAGED])
def test_damage_is_named_by_its_line_and_the_rest_is_kept(data: bytes, line: int, message: str, kept: int) -> None:
    reading, _ = read(data)
    assert any(fault.line == line and message in fault.message for fault in reading.faults), reading.faults
    log = log_of(data)
    assert len(log.rows) == kept
    assert [row.seq for row in log.rows] == list(range(1, kept + 1))


@pytest.mark.parametrize("data", [b"", b"\n", b"[]", b"{}", b"\x1f\x8b...", b"a,b\n1,2\n", WHOLE[:3], LINES[0]])
def test_what_is_no_export_is_none(data: bytes) -> None:
    with pytest.raises(NoExport):
        read(data)


@pytest.mark.parametrize("change", [{"salience_export": 2, "what_is_new": 1}, {"decoder_versions": [1, 2]}])
def test_a_newer_file_is_refused_whole(change: dict[str, Any]) -> None:
    with pytest.raises(NewerExport):
        read(_edited(1, lambda v: v.update(change)))


def test_events_of_another_session_are_left_out() -> None:
    strange = lines(rows(payloads()[:3], session_id="s-strange"), session_id="s-strange")
    strange_event = next(line for line in reversed(strange) if b'"kind":"event"' in line)
    reading, _ = read(b"".join([*LINES[:-1], strange_event, LINES[-1]]))
    assert any("another session" in fault.message for fault in reading.faults)
    assert len(reading.sections[0].events) == 7


def test_what_no_store_takes_is_left_out() -> None:
    """A file may be well made and still hold what no history could: it is refused by line, before a store refuses it."""
    said = payloads()
    nul = said[1].model_copy(update={"text": "a\x00b"})
    huge = said[1].model_copy(update={"size_bytes": 2**70})
    for bad, word in ((nul, "NUL"), (huge, "64 bits")):
        reading, _ = read(b"".join(lines(rows([said[0], bad, *said[2:]]))))
        assert [fault for fault in reading.faults if word in fault.message]
        assert len(reading.sections[0].events) == 6


def test_an_erased_payload_stays_erased() -> None:
    from dataclasses import replace

    made = rows()
    made[1] = replace(made[1], payload=None)
    reading, _ = read(b"".join(lines(made)))
    assert reading.faults == []
    log = imported = log_of(b"".join(lines(made)))
    assert imported.rows[1].payload is None
    assert log.rows[1].payload_digest == made[1].payload_digest
    assert log.events[1] is None


def test_lines_end_at_line_feeds_and_nowhere_else() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\n".encode()
    taken = Lines()
    assert [line.data for line in (*taken.feed(text + b"h"), *taken.finish())] == [text[:-1], b"h"]


def test_a_long_line_costs_no_memory() -> None:
    taken = Lines()
    for _ in range(40):
        assert not list(taken.feed(b"x" * 1_000_000))
        assert len(taken._rest) <= MAX_LINE_BYTES
    (line,) = taken.feed(b"\n")
    assert line.data is None
    (after,) = taken.feed(b"ok\n")
    assert (after.number, after.data) == (2, b"ok")
