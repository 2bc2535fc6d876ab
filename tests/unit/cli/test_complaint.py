"""Every kind of error becomes one line and the exit code of the contract."""

from __future__ import annotations

import pytest
import typer

from salience import errors
from salience.cli.complaint import Complaint, complaint_of, one_line, show
from salience.cli.follow import Ending
from salience.cli.sessions import failure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SalienceError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.InputTooLarge("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.VerificationFailed("x"), 4),
        (errors.BackendUnavailable("x"), 5),
        (errors.StackNotRunning("x"), 5),
        (errors.ModelUnusable("x"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 1),
        (typer.BadParameter("x"), 2),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert complaint_of(error).code == code


def test_an_unexpected_error_says_how_to_see_more() -> None:
    complaint = complaint_of(RuntimeError("two\nlines\x1b[31m"))
    assert not complaint.expected
    assert "\n" not in complaint.line
    assert "\x1b" not in complaint.line
    assert "--debug" in complaint.line


def test_the_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SALIENCE_DEBUG", raising=False)
    assert show(Complaint("gone", 3), errors.NotFound("gone")) == 3
    assert capsys.readouterr().err == "salience: gone\n"
    monkeypatch.setenv("SALIENCE_DEBUG", "1")
    show(Complaint("gone", 3), errors.NotFound("gone"))
    assert "NotFound: gone" in capsys.readouterr().err


def test_a_long_line_is_bounded() -> None:
    assert len(one_line("x" * 5000)) == 1000


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("model_unavailable", 5),
        ("backend_unavailable", 5),
        ("model_auth", 1),
        ("model_bad_request", 1),
        ("step_limit", 1),
        ("context_unfit", 1),
        ("terminated", 1),
    ],
)
def test_a_bad_ending_has_an_exit_code_and_a_way_on(reason: str, code: int) -> None:
    ending = Ending.model_validate({"session_id": "s-1", "reason": reason, "detail": "because\nof it"})
    complaint = complaint_of(failure(ending))
    assert complaint.code == code
    assert complaint.line.startswith(f"s-1 ended with {reason}: because of it — ")
