"""Text that passed here is valid UTF-8 without NUL: it can be serialised and stored anywhere (design §5)."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
# A lone surrogate passes pydantic's validation and then breaks its serialiser; Postgres refuses NUL in text and jsonb.
_BAD = re.compile("[\x00\ud800-\udfff]")


def mend(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD; surrogate pairs become the character they encode."""
    if not _BAD.search(text):
        return text
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _BAD.sub(REPLACEMENT, paired)


def decode(data: bytes) -> str:
    """Bytes of unknown origin as mended text; invalid UTF-8 becomes U+FFFD."""
    return mend(data.decode("utf-8", "replace"))


def original(text: str) -> bytes:
    """The bytes kept as evidence of a text that had to be mended; lone surrogates survive as their UTF-8-like form."""
    return text.encode("utf-8", "surrogatepass")


def preview(text: str, limit: int) -> str:
    """The first `limit` UTF-8 bytes of a text, cut at a character; the cut is marked with an ellipsis."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - 3].decode("utf-8", "ignore") + "…"
