"""An error ends a command as one line — what happened and how to mend it — and an exit code, never as a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
import traceback
from typing import NamedTuple

import typer

from salience.errors import SalienceError

FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 1, 2, 5, 130


class Complaint(NamedTuple):
    """What goes to stderr, and the exit code; `expected` is false for a fault of Salience's own."""

    line: str
    code: int
    expected: bool = True


def complaint_of(error: BaseException) -> Complaint:
    """What to say of an error.

    Args:
        error: anything a command raised.
    """
    if isinstance(error, SalienceError):
        return Complaint(one_line(error.line()), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Complaint("interrupted", INTERRUPTED)
    if isinstance(error, typer.Abort):
        return Complaint("aborted: nothing was changed", FAILED)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return Complaint(_usage(error), USAGE)
    if isinstance(error, tomllib.TOMLDecodeError):
        return Complaint(f"salience.toml is no TOML: {error} — correct the file in $SALIENCE_HOME", USAGE)
    if getattr(error, "title", "") == "Settings" or type(error).__name__ == "SettingsError":
        mend = "correct salience.toml in $SALIENCE_HOME or the SALIENCE_* variables"
        return Complaint(f"invalid settings: {problems(error)} — {mend}", USAGE)
    if type(error).__name__ == "RPCError":
        return Complaint(f"Temporal did not answer: {one_line(str(error))} — salience doctor", UNAVAILABLE)
    words = one_line(f"{type(error).__name__}: {error}")
    return Complaint(f"unexpected error: {words} — `salience --debug …` shows where", FAILED, expected=False)


def problems(error: BaseException) -> str:
    """The problems of a pydantic error as one line."""
    if not hasattr(error, "errors"):
        return one_line(str(error))
    found: list[str] = []
    for problem in error.errors():  # pyright: ignore[reportAttributeAccessIssue]
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            found.append(f"{where} is not a known key")
        else:
            found.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": "))
    return one_line("; ".join(found))


def one_line(words: str, limit: int = 1000) -> str:
    """Words without line breaks or control characters, bounded."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(words.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def show(complaint: Complaint, error: BaseException) -> int:
    """Print the line (and the traceback, where it is wanted); returns the exit code."""
    if os.environ.get("SALIENCE_DEBUG") and not isinstance(error, KeyboardInterrupt):
        traceback.print_exception(error)
    with contextlib.suppress(OSError):
        print(f"salience: {complaint.line}", file=sys.stderr, flush=True)
    return complaint.code


def _usage(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "salience"
    message = one_line(error.format_message()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
    return f"{message or 'a command is missing'} — {command} --help"
