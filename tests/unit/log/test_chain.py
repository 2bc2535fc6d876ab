"""One changed byte, one missing row, one row out of place: each breaks the chain at its seq (spec EVT-4)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from salience.log.chain import Row, fault_of, row_of
from salience.model import event as ev


def rows(count: int) -> list[Row]:
    made: list[Row] = []
    for seq in range(1, count + 1):
        payload = ev.UserPromptSubmitted(message_id=f"m{seq}", text=f"text {seq}", delivery="update")
        event = ev.Event(
            event_id=f"run:{seq}:prompt",
            session_id="s",
            run_id="run",
            seq=seq,
            timestamp="2026-01-01T00:00:00.000000Z",
            type="UserPromptSubmitted",
            actor="user",
            payload=payload,
        )
        made.append(row_of(event, made[-1].hash if made else "", 1))
    return made


def first_fault(chain: list[Row]) -> int | None:
    previous = ""
    for seq, row in enumerate(chain, start=1):
        if fault_of(row, previous, seq):
            return seq
        previous = row.hash
    return None


def test_an_untouched_chain_holds() -> None:
    assert first_fault(rows(5)) is None


@given(st.integers(0, 4), st.sampled_from(["payload", "metadata", "hash", "payload_digest"]), st.integers(0, 30))
def test_one_flipped_byte_is_located(at: int, column: str, byte: int) -> None:
    chain = rows(5)
    value = getattr(chain[at], column)
    place = byte % len(value)
    other = "0" if value[place] != "0" else "1"
    chain[at] = replace(chain[at], **{column: value[:place] + other + value[place + 1 :]})
    assert first_fault(chain) == at + 1


def test_a_missing_and_a_swapped_row_are_located() -> None:
    chain = rows(5)
    assert first_fault(chain[:2] + chain[3:]) == 3
    assert first_fault([chain[0], chain[2], chain[1], *chain[3:]]) == 2


def test_an_erased_payload_keeps_the_chain() -> None:
    chain = rows(3)
    chain[1] = replace(chain[1], payload=None)
    assert first_fault(chain) is None
