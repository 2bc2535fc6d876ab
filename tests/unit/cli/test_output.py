"""What is printed is bounded, aligned, and free of control characters."""

from __future__ import annotations

import json

import pytest

from salience.cli.follow import quiet_because
from salience.cli.output import bar, clean, fields, indented, json_out, say, short, table
from salience.model.stats import Stats


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert clean("a\x1b[2Jb\r\nc\td\x07") == "a\ufffd[2Jb\nc\td\ufffd"


def test_short_is_one_line() -> None:
    assert short("a\n  b", 10) == "a b"
    assert short("abcdef", 4) == "abc…"


def test_indented_counts_what_it_leaves_out() -> None:
    text = "\n".join(str(n) for n in range(10))
    assert indented(text, lines=2) == "    0\n    1\n    … 8 more lines (--full)"
    assert indented(text).count("\n") == 9


def test_a_table_in_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table(("A", "N"), [("x", 1), ("long" * 60, 22), (None, None)], right=(1,))
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == ["A", "N"]
    assert lines[2].endswith("  22")
    assert len(lines[1]) == len(lines[2])
    assert "\x1b" not in "".join(lines)


def test_fields_leave_out_what_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    fields([("one", 1), ("none", None), ("longer", "x")])
    assert capsys.readouterr().out == "one     1\nlonger  x\n"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_out(Stats(session_id="s\n1"))
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["session_id"] == "s\n1"


def test_styles_leave_no_codes_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold]words[/bold]", "bad")
    assert capsys.readouterr().out == "[bold]words[/bold]\n"


@pytest.mark.parametrize(("share", "filled"), [(0, 0), (0.5, 5), (1, 10), (3, 10)])
def test_bar(share: float, filled: int) -> None:
    assert bar(share, 10).count("█") == filled
    assert len(bar(share, 10)) == 10


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, "salience doctor"),
        ({"status": "paused", "step": "waiting"}, "salience resume s"),
        ({"status": "active", "step": "waiting"}, "salience say s"),
        ({"status": "active", "step": "calling_model", "turn": 3}, "turn 3: waiting for the model"),
        ({"status": "active", "step": "ending", "turn": 3}, "turn 3: ending"),
    ],
)
def test_why_nothing_happens(status: dict[str, object] | None, said: str) -> None:
    assert said in quiet_because("s", status)
