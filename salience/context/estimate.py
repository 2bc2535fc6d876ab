"""An estimate never under-counts by more than 5 %: too many tokens cost room, too few cost the turn (spec CTX-6).

Characters per token differ by a factor of ten between prose and encoded data, so no single divisor is right. Text is
cut into the pieces byte-pair tokenizers cut it into — words at changes of case, digits, blanks, punctuation, scripts —
and each kind has its own price, fitted against o200k_base and then raised: most other tokenizers have smaller tables.
Text of ideographs drawn at random from Unicode, which no language is, costs up to twice what is said here.
"""

from __future__ import annotations

import re

ESTIMATE_VERSION = "estimate-1"
MARGIN = 1.04

_PIECE = re.compile(
    r"([ \t\r\n\f\v]+)"
    r"|((.)\3{15,})"
    r"|([A-Za-z0-9+/=_-]{20,})"
    r"|([A-Z]?[a-z]+|[A-Z]+)"
    r"|([0-9]+)"
    r"|([!-/:-@\[-`{-~]+)"
    r"|([^\x00-\x7f]+)"
    r"|(.)",
    re.DOTALL,
)
_BLANK, _REPEAT, _RUN, _WORD, _DIGITS, _PUNCTUATION, _WIDE = 1, 2, 4, 5, 6, 7, 8
_RUN_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^A-Za-z0-9]+")
# Encoded data changes between small letters, capitals and digits every few characters; names do not.
_ENCODED_PIECE_LENGTH = 3.2


def estimate(text: str) -> int:
    """Tokens of a text, rounded up.

    Args:
        text: any text; the cost of counting is linear in its length.

    Returns:
        At least 0.95 of what o200k_base counts, for prose, code, data and encoded text in any living script.
    """
    cost = 0.0
    for match in _PIECE.finditer(text):
        kind = match.lastindex
        piece = match.group()
        size = len(piece)
        if kind == _WORD:
            cost += _word(piece, size)
        elif kind == _BLANK:
            cost += _blank(piece, size)
        elif kind == _PUNCTUATION:
            cost += 1.0 if size < 3 else size / 1.42
        elif kind == _DIGITS:
            cost += (size + 2) // 3 + 0.15
        elif kind == _RUN:
            cost += _run(piece, size)
        elif kind == _WIDE:
            cost += sum(map(_wide, piece))
        elif kind == _REPEAT:
            cost += 1.0 + size / 4
        else:
            cost += 1.0
    return int(cost * MARGIN) + 1 if text else 0


def _word(piece: str, size: int) -> float:
    if size > 1 and piece.isupper():
        return size / 1.7 + 0.3
    if size <= 4:
        return 1.0
    if size <= 9:
        return 1.2
    return size / 5 if size <= 20 else size / 1.85


def _blank(piece: str, size: int) -> float:
    if size == 1:
        return 0.06 if piece == " " else 1.0
    # Long runs of one blank have tokens of their own; breaks mixed with indents have few.
    return 1.1 + size / (50 if piece.isspace() and piece.strip(" ") == "" else 14)


def _run(piece: str, size: int) -> float:
    parts = _RUN_PIECE.findall(piece)
    if size / len(parts) < _ENCODED_PIECE_LENGTH:
        return size / 1.2
    cost = 0.0
    for part in parts:
        first = part[0]
        if first.isdigit():
            cost += (len(part) + 2) // 3 + 0.15
        elif first.isalpha():
            cost += _word(part, len(part))
        else:
            cost += 1.0 if len(part) < 3 else len(part) / 1.42
    return cost


def _wide(character: str) -> float:
    point = ord(character)
    for end, price in _PRICES:
        if point < end:
            return price
    return 4.2


_PRICES: tuple[tuple[int, float], ...] = (
    (0x00A1, 2.0),  # control characters of Latin-1
    (0x0250, 1.0),  # Latin with diacritics
    (0x0700, 0.6),  # Greek, Cyrillic, Hebrew, Arabic
    (0x0900, 2.5),
    (0x1100, 0.9),  # scripts of India and of South-East Asia
    (0x1E00, 2.8),
    (0x1F00, 1.0),  # Vietnamese
    (0x2E80, 1.6),  # punctuation, arrows, mathematics, boxes
    (0x3040, 1.1),
    (0x3100, 1.0),  # kana
    (0xA000, 1.25),  # ideographs
    (0xAC00, 2.0),
    (0xD7B0, 1.1),  # Hangul
    (0x10000, 2.0),
    (0x20000, 3.0),  # emoji
)
"""Tokens a character, by the end of its range; everything above is rare ideographs."""
