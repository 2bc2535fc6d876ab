"""The text of a record is bounded whatever it holds; the record itself is not cut (spec CMP-6, CMP-9)."""

from __future__ import annotations

import pytest

from salience.compaction import Compaction, Refusal, text_of_record
from salience.context.sections import section
from salience.context.tokens import tokenizer_for
from salience.model.state import Constraints, Decision, Fact, FileState
from tests.unit.compaction.compacted_session import LONG, Work, shown, summary_of

COUNT = tokenizer_for("script:x")


def huge(window: int, *, constraint_bytes: int = 2_000, **fields: object) -> Work:
    """A session with 5,000 files and facts and long constraints, after one long round."""
    work = Work(window=window, **fields)  # type: ignore[arg-type]
    work.say("mend the build")
    hard = (f"never {'x y ' * (constraint_bytes // 4)}", "never touch main")
    work.state = work.state.model_copy(
        update={
            "files": {
                f"src/some/long/folder/file{n}.py": FileState(modified=n % 2 == 0, read=True, last_event_id=f"r:{n}:f")
                for n in range(5_000)
            },
            "facts": tuple(Fact(fact_id=f"f{n}", content=f"fact {n} 文件", confidence=1) for n in range(5_000)),
            "decisions": tuple(Decision(decision_id=f"d{n}", decision="d", rationale_summary="r") for n in range(500)),
            "constraints": Constraints(hard=hard, soft=("s " * 3_000,)),
        }
    )
    for n in range(60):
        work.call(f"step {n}", [LONG])
    return work


@pytest.mark.parametrize("window", [9_000, 12_000, 64_000])
def test_a_huge_state_gives_a_bounded_text_and_a_whole_record(window: int) -> None:
    work = huge(window)
    work.build()
    made = work.planned("manual")
    assert isinstance(made, Compaction), made
    assert made.record.constraints.hard == work.state.constraints.hard
    assert len(made.record.facts) == 5_000
    assert len(made.record.files.modified) == len(made.record.files.read) == 2_500
    work.take(made)
    text, tokens = summary_of(work.build())
    assert tokens <= max(200, int((window - 1_000) * 0.12))
    assert "Hard constraints:" in text
    for title, count in (("Files changed (2500):", 2_500), ("Facts, latest first:", 5_000)):
        if title not in text:
            assert window < 12_000, "there is room for every section"
            continue
        lines = text.partition(f"{title}\n")[2].split("\n")
        told = next(at for at, line in enumerate(lines) if not line.startswith("- ") or line.startswith("- … "))
        assert lines[told] == f"- … {count - told} more in the record"
    assert 0 < made.checks.estimated_information_loss < 1


def test_what_is_too_large_is_refused_by_name() -> None:
    work = huge(9_000, constraint_bytes=40_000)
    before = work.build()
    assert not before.summary.fits
    made = work.planned("reactive")
    assert isinstance(made, Refusal)
    assert made.kind == "does_not_fit"
    assert "8000 are usable" in made.message
    assert "state card (state)" in made.message


def test_a_request_larger_than_the_window_is_named() -> None:
    work = Work(window=6_000)
    work.say("start")
    work.call("a", ["b"])
    work.say("word " * 8_000)
    work.call("c", ["d"])
    work.call("e", ["f"])
    work.build()
    made = work.planned("proactive")
    assert isinstance(made, Refusal)
    assert made.kind == "does_not_fit"
    assert "the largest: current request (tr3)" in made.message


def test_a_request_larger_than_what_user_messages_may_have_stays_whole() -> None:
    """Fifteen hundredths of the window are for user messages before the cut; the request has half of it."""
    work = Work(window=12_000)
    for n in range(4):
        work.say(f"before {n}")
        work.call("a", [LONG])
    work.say("word " * 5_000)
    for n in range(12):
        work.call(f"c {n}", [LONG])
    work.build()
    made = work.planned("proactive")
    assert isinstance(made, Compaction), made
    work.take(made)
    after = work.build()
    assert after.summary.fits
    assert 12 in shown(after) or 8 in shown(after)
    assert after.manifest.current_request == "tr8" or after.manifest.current_request == "tr12"


@pytest.mark.parametrize("window", [3_000, 4_000, 6_000])
def test_small_windows_compact(window: int) -> None:
    """With large tool contracts and a small window the smallest summary still serves."""
    work = Work(window=window, reserved=500)
    work.say("mend the build")
    for n in range(40):
        work.call(f"step {n}", ["a line of output\n" * 20], wrote=[f"src/{n}.py"])
    assert not work.build().summary.fits
    made = work.planned("proactive")
    assert isinstance(made, Compaction), made
    work.take(made)
    after = work.build()
    assert after.summary.fits
    assert after.summary.decision == "below_threshold"


@pytest.mark.parametrize("size", [10_000, 2_000, 500, 200, 150, 60, 0, -100])
def test_a_text_never_exceeds_its_room_but_by_the_lines_that_say_what_it_is(size: int) -> None:
    work = huge(64_000)
    work.build()
    made = work.planned("manual")
    assert isinstance(made, Compaction)
    text = text_of_record(made.record, max_tokens=size, tokenizer=COUNT)
    head = "\n".join(text.split("\n")[:2])
    assert text.startswith("Summary of this session's earlier work")
    assert COUNT.lines(text) <= max(size, COUNT.lines(head))


def test_ideographs_and_digests_are_counted_and_not_guessed() -> None:
    """Bytes would say a third of what digests cost."""
    work = Work(window=64_000)
    work.say("做" * 400)
    for n in range(50):
        work.call(f"第{n}步 " * 20, ["文件读取失败 " * 300])
    work.build()
    made = work.planned("manual")
    assert isinstance(made, Compaction)
    for size in (300, 700, 2_000):
        assert COUNT.lines(text_of_record(made.record, max_tokens=size, tokenizer=COUNT)) <= size


def test_a_section_says_how_much_it_leaves_out() -> None:
    items = [f"item {n}" for n in range(10)]
    whole, used = section("T:", items, 1_000, line_bytes=100, size=len, more="more")
    assert whole == ["T:", *(f"- item {n}" for n in range(10))]
    assert used == sum(map(len, whole))
    for room in range(used):
        lines, took = section("T:", items, room, line_bytes=100, size=len, more="more")
        assert took == sum(map(len, lines)) <= room
        if lines:
            assert lines[-1] == f"- … {10 - (len(lines) - 2)} more"
    assert section("T:", [], 100, line_bytes=100, size=len, more="more") == ([], 0)


def test_the_first_item_of_a_section_is_cut_rather_than_left_out() -> None:
    lines, used = section("T:", ["w " * 500], 200, line_bytes=400, size=len, more="more")
    assert len(lines) == 2
    assert 100 < used <= 200
    assert lines[1].endswith("…")
    assert section("T:", ["w " * 500], 90, line_bytes=400, size=len, more="more")[0] == ["T:", "- … 1 more"]
