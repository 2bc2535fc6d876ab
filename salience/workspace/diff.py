"""A diff is the change of text files in unified form: the same two contents give the same text, in bounded time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from salience.model.text import decode

CONTEXT_LINES = 3
MAX_COMPARED_LINES = 4_000
"""Longer stretches that differ are shown as removed and added whole: comparing lines takes quadratic time."""
MAX_DIFF_BYTES = 4 * 1024 * 1024
_SNIFF_BYTES = 8192


class Pair(NamedTuple):
    """One file before and after. `None` is "not there"; a `note` stands in for contents that cannot be shown."""

    path: str
    before: bytes | None
    after: bytes | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """The text and how many lines it adds and removes."""

    text: str
    added: int
    removed: int


class _Span(NamedTuple):
    equal: bool
    old_from: int
    old_to: int
    new_from: int
    new_to: int


def unified(pairs: Iterable[Pair]) -> Diff:
    """The unified diff of some files, in the order given.

    Returns:
        The diff; after `MAX_DIFF_BYTES` further files are named only.
    """
    parts: list[str] = []
    size = added = removed = 0
    for pair in pairs:
        if pair.before == pair.after and not pair.note:
            continue
        head = f"--- {_side('a', pair.path, pair.before)}\n+++ {_side('b', pair.path, pair.after)}\n"
        note = pair.note or ("binary" if _binary(pair.before) or _binary(pair.after) else "")
        if note or size > MAX_DIFF_BYTES:
            parts.append(f"{head}({note or 'the diff is too long to go on'})\n")
            continue
        old, new = _lines(pair.before), _lines(pair.after)
        body: list[str] = []
        for hunk in _hunks(_spans(old, new)):
            body.append(_hunk_head(hunk))
            for span in hunk:
                if span.equal:
                    body += [" " + line for line in old[span.old_from : span.old_to]]
                else:
                    body += ["-" + line for line in old[span.old_from : span.old_to]]
                    body += ["+" + line for line in new[span.new_from : span.new_to]]
                    removed += span.old_to - span.old_from
                    added += span.new_to - span.new_from
        text = head + "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in body
        )
        parts.append(text)
        size += len(text)
    return Diff("".join(parts), added, removed)


def _side(letter: str, path: str, data: bytes | None) -> str:
    return "/dev/null" if data is None else f"{letter}/{path}"


def _binary(data: bytes | None) -> bool:
    return data is not None and b"\x00" in data[:_SNIFF_BYTES]


def _lines(data: bytes | None) -> list[str]:
    # Only "\n" ends a line here: str.splitlines would also cut at form feeds and U+2028.
    if not data:
        return []
    lines = decode(data).split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _spans(old: list[str], new: list[str]) -> list[_Span]:
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    spans = [_Span(True, 0, head, 0, head)]
    if len(middle_old) + len(middle_new) > MAX_COMPARED_LINES:
        spans.append(_Span(False, head, len(old) - tail, head, len(new) - tail))
    else:
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, middle_old, middle_new, autojunk=False).get_opcodes():
            spans.append(_Span(tag == "equal", i1 + head, i2 + head, j1 + head, j2 + head))
    spans.append(_Span(True, len(old) - tail, len(old), len(new) - tail, len(new)))
    return [span for span in spans if span.old_from < span.old_to or span.new_from < span.new_to]


def _hunks(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Changed spans with their context; two changes with little between them share a hunk."""
    hunk: list[_Span] = []
    changed = False
    for span in spans:
        length = span.old_to - span.old_from
        if not span.equal:
            hunk.append(span)
            changed = True
        elif changed and length <= 2 * CONTEXT_LINES and span is not spans[-1]:
            hunk.append(span)
        else:
            if changed:
                keep = min(CONTEXT_LINES, length)
                yield [*hunk, span._replace(old_to=span.old_from + keep, new_to=span.new_from + keep)]
            keep = min(CONTEXT_LINES, length)
            hunk = [span._replace(old_from=span.old_to - keep, new_from=span.new_to - keep)]
            changed = False
    if changed:
        yield hunk


def _hunk_head(hunk: list[_Span]) -> str:
    first, last = hunk[0], hunk[-1]
    old = _range(first.old_from, last.old_to - first.old_from)
    new = _range(first.new_from, last.new_to - first.new_from)
    return f"@@ -{old} +{new} @@\n"


def _range(start: int, length: int) -> str:
    return f"{start if length == 0 else start + 1},{length}"
