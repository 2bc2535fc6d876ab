"""User input becomes one Prompt, whoever sends it and in whatever form: nothing a client sends is lost (spec LOOP-2c).

The workflow and the decoder both read input through this module, so that what is acknowledged is what is recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from salience.model import text
from salience.model.calls import SPILL_BYTES, Prompt
from salience.model.canonical import digest

SPILLED_PREVIEW_BYTES = 1024


def parse_prompt(raw: Any) -> Prompt:
    """A Prompt from what a client sent: a string, an object with `text`, or any other JSON value as its text.

    Args:
        raw: the decoded JSON value. Unknown keys of an object are ignored: a plain client may add its own.

    Returns:
        The prompt as sent, not yet mended; `message_id` is empty when the client gave none.
    """
    if isinstance(raw, Prompt):
        return raw
    if isinstance(raw, str):
        return Prompt(text=raw)
    fields = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    words = fields.get("text", "")
    if not fields or not isinstance(words, str):
        return Prompt(text=json.dumps(raw, ensure_ascii=True))
    message_id, size = fields.get("message_id"), fields.get("size_bytes")
    return Prompt.model_construct(
        message_id=text.mend(str(message_id))[:200] if message_id else "",
        text=words,
        text_ref=_text(fields.get("text_ref")),
        size_bytes=size if isinstance(size, int) else 0,
        original_ref=_text(fields.get("original_ref")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def is_empty(prompt: Prompt) -> bool:
    """Whether there is nothing in it to deliver."""
    return prompt.text_ref is None and not prompt.text.strip()


@dataclass(frozen=True, slots=True)
class Kept:
    """A prompt fit for the journal, and the blobs that must be stored before it is appended."""

    prompt: Prompt
    blobs: dict[str, bytes]


def keep(prompt: Prompt) -> Kept:
    """Mend the text, keeping the original as evidence, and spill it to a blob when it is large (design §8).

    Our own client has done both before it sent anything, so this changes only what plain clients send.
    """
    blobs: dict[str, bytes] = {}
    mended = text.mend(prompt.text)
    original_ref = prompt.original_ref
    if mended != prompt.text:
        raw = text.original(prompt.text)
        original_ref = digest(raw)
        blobs[original_ref] = raw
    text_ref, size = prompt.text_ref, prompt.size_bytes
    if text_ref is None:
        data = mended.encode()
        size = len(data)
        if size > SPILL_BYTES:
            text_ref = digest(data)
            blobs[text_ref] = data
            mended = text.preview(mended, SPILLED_PREVIEW_BYTES)
    return Kept(
        Prompt.model_construct(
            message_id=prompt.message_id, text=mended, text_ref=text_ref, size_bytes=size, original_ref=original_ref
        ),
        blobs,
    )
