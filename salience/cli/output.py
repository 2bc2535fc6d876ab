"""Results go to stdout, all else to stderr; what a model or tool wrote never reaches a terminal as a control code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

_HARMLESS = "\n\t\xa0\u2002\u2003\u2009\u202f\u3000\u200b\u200d\ufeff"
"""Spaces that Python calls not printable."""
_STYLES = {
    "user": "bold cyan",
    "model": "green",
    "tool": "yellow",
    "agent": "green",
    "system": "dim",
    "bad": "bold red",
    "dim": "dim",
    "head": "bold",
}


def json_out(value: Any) -> None:
    """One JSON value on one line of stdout; models by their aliases, without absent fields."""
    if hasattr(value, "plain"):
        value = value.plain()
    typer.echo(json.dumps(value, ensure_ascii=False))


def say(words: str = "", style: str = "") -> None:
    """A line of the result."""
    _print(words, style, sys.stdout)


def tell(words: str, style: str = "dim") -> None:
    """A line of progress or a hint, on stderr."""
    _print(words, style, sys.stderr)


def warn(words: str) -> None:
    """Something the user should know that is no error."""
    _print(f"salience: {words}", "", sys.stderr)


def clean(words: str) -> str:
    """Text without control characters, except line breaks and tabs: output of a tool must not steer the terminal."""
    return "".join(c if c.isprintable() or c in _HARMLESS else "\ufffd" for c in words.replace("\r\n", "\n"))


def short(words: str, limit: int) -> str:
    """Words as one line of at most `limit` characters."""
    line = " ".join(clean(words).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def indented(words: str, *, lines: int = 0, by: str = "    ") -> str:
    """A text indented; with `lines`, at most so many of them and a count of the rest."""
    all_lines = clean(words).rstrip("\n").split("\n")
    shown = all_lines[:lines] if lines else all_lines
    if lines:
        shown = [line if len(line) <= 300 else line[:299] + "…" for line in shown]
    text = "\n".join(by + line for line in shown)
    left = len(all_lines) - len(shown)
    return f"{text}\n{by}… {left} more lines (--full)" if left else text


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[int] = ()) -> None:
    """Columns padded to their widest cell; the last one is cut at a terminal's edge and whole in a pipe.

    Args:
        heads: names of the columns.
        rows: cells; None is shown as nothing.
        right: indexes of columns that are aligned to the right.
    """
    cells = [[short("" if cell is None else str(cell), 10_000) for cell in row] for row in rows]
    widths = [max([len(head), *(len(row[at]) for row in cells)]) for at, head in enumerate(heads)]
    width = _console(sys.stdout).width if sys.stdout.isatty() else 0

    def line(row: Sequence[str]) -> str:
        padded = [c.rjust(widths[at]) if at in right else c.ljust(widths[at]) for at, c in enumerate(row)]
        joined = "  ".join(padded).rstrip()
        return joined if not width or len(joined) <= width else joined[: width - 1] + "…"

    say(line(list(heads)), "head")
    for row in cells:
        say(line(row))


def fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line; absent values are left out."""
    shown = [(name, short(str(value), 2_000)) for name, value in pairs if value not in (None, "", ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:{width}}  {value}")


def bar(share: float, width: int = 20) -> str:
    """A share from 0 to 1 as a bar."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "·" * (width - filled)


def _print(words: str, style: str, stream: Any) -> None:
    if stream.isatty():
        from rich.text import Text

        _console(stream).print(Text(words, style=_STYLES.get(style, style)), soft_wrap=True)
    else:
        typer.echo(words, file=stream)


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)
