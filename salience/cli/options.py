"""Options that several commands share mean the same everywhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from salience.cli.output import warn
from salience.errors import NotFound, UsageError
from salience.model import text

MAX_SEQ_DIGITS = 18


def event_name(name: str | None) -> str | None:
    """The name of an event as a store can look it up.

    Raises:
        UsageError: it can be no event's: empty, no valid text, or digits that are no seq.
    """
    if name is None:
        return None
    plain = text.mend(name)
    if plain != name or not plain.strip():
        raise UsageError(
            f"--at {plain!r} names no event", mend="give an event id or a seq, as salience events prints them"
        )
    if plain.isdigit() and not (plain.isascii() and len(plain) <= MAX_SEQ_DIGITS):
        raise UsageError(f"--at {plain[:40]!r} is no seq", mend="give a number that salience events prints")
    return plain


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.", callback=text.mend)]
Words = Annotated[
    str | None, typer.Argument(metavar="WORDS", help="What to say; `-` reads it from stdin.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--file", help="Read the words from a file.", show_default=False)]
Model = Annotated[
    str | None,
    typer.Option("--model", help="provider/model, or script:FILE for the scripted model.", show_default=False),
]
MessageId = Annotated[
    str | None,
    typer.Option("--message-id", help="Makes the input idempotent: the same id is delivered once.", show_default=False),
]
Follow = Annotated[bool, typer.Option("--follow", help="Follow the session to its end.")]
Full = Annotated[bool, typer.Option("--full", help="Show everything, however long.")]


def words_of(words: str | None, file: Path | None, what: str) -> str:
    """What the user says: the argument, stdin or a file. Bad characters stay for the client to mend and keep.

    Args:
        words: the argument; `-` means stdin.
        file: the file of `--file`.
        what: what is missing when there is neither, for the error.

    Raises:
        UsageError: neither or both are given.
        NotFound: there is no such file.
    """
    if (words is None) == (file is None):
        problem = f"no {what}" if words is None else f"{what} and --file are both given"
        raise UsageError(problem, mend=f"give the {what}, or `-` to read it from stdin, or --file FILE")
    if file is not None:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise NotFound(f"{file} cannot be read: {error.strerror}") from error
    elif words == "-":
        data = sys.stdin.buffer.read()
    else:
        data = os.fsencode(words or "")
    # Surrogates stand for the bytes that are no UTF-8: the client replaces them and keeps the original (design §8).
    raw = data.decode("utf-8", "surrogateescape")
    mended = text.mend(raw)
    if mended != raw:
        bad = sum(a != b for a, b in zip(raw, mended, strict=True)) if len(raw) == len(mended) else 1
        warn(f"{bad} characters were no valid text and are replaced by U+FFFD; the original is kept as an artifact")
    return raw


def model_name(name: str) -> str:
    """A model's name with the path of a script made absolute, because a worker elsewhere on this machine reads it.

    Raises:
        NotFound: the script does not exist.
    """
    name = text.mend(name)
    if not name.startswith("script:") or name == "script:":
        return name
    path = Path(os.path.abspath(Path(name.removeprefix("script:")).expanduser()))
    if not path.is_file():
        raise NotFound(f"no script {path}", mend="give --model script:FILE with a YAML file of turns")
    return f"script:{path}"
