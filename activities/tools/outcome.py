"""An outcome is small: what the model sees, and all of it, lie in blobs; history holds their digests (EVT-6)."""

from __future__ import annotations

import asyncio

from activities.tools.paging import head, tail
from activities.tools.result import Refused, Result
from salience.model.calls import PREVIEW_BYTES
from salience.model.canonical import canonical_json
from salience.model.text import decode, mend, preview
from salience.model.tool import FileEffect, ToolOutcome
from salience.store.blobs import BlobStore

MAX_OUTCOME_BYTES = 8 * 1024
MAX_INLINE_EFFECTS = 40
_NAME_BYTES = 200
LARGE_BYTES = 4 * 1024 * 1024
_LEFT_OUT = "\n[… {left_out} bytes left out here; read_artifact reads the whole of it, blob:{ref} …]\n"
_MARKER_ROOM = 170
"""Bytes the line above takes at most."""


async def settled(
    tool_call_id: str, name: str, result: Result, blobs: BlobStore, *, max_bytes: int, duration_ms: int
) -> ToolOutcome:
    """The outcome of a result, with its texts stored.

    Args:
        tool_call_id: the call.
        name: the tool's name, as the model gave it.
        result: what the tool gave.
        blobs: where texts are kept.
        max_bytes: most bytes of text that a model sees.
        duration_ms: how long it ran; the only part of an outcome that two identical runs do not share.

    Returns:
        The outcome; its JSON stays under `MAX_OUTCOME_BYTES`.
    """
    trailer = mend(result.trailer)
    if len(result.output) > max(LARGE_BYTES, 4 * max_bytes):
        # Cut from the bytes as they are: as text it would be in memory four times over.
        text, data = "", result.output
    else:
        text = await asyncio.to_thread(decode, result.output)
        data = text.encode()
    if data and trailer and not data.endswith(b"\n"):
        trailer = "\n" + trailer
    clipped = len(data) + len(trailer.encode()) > max_bytes
    whole = result.whole
    if whole is None and (clipped or data != result.output):
        whole = result.output
    full_ref = await blobs.put(whole) if whole is not None else None
    seen = (clip(data, max_bytes - len(trailer.encode()), full_ref or "") if clipped else text) + trailer
    outcome = ToolOutcome(
        tool_call_id=tool_call_id,
        name=preview(mend(name), _NAME_BYTES),
        ok=result.ok,
        kind=result.kind,
        output_ref=await blobs.put(seen.encode()),
        full_ref=full_ref,
        output_bytes=len(result.output),
        preview=preview(seen, PREVIEW_BYTES),
        truncated=clipped or result.truncated,
        exit_code=result.exit_code,
        diff_ref=await blobs.put(result.diff.text.encode()) if result.diff and result.diff.text else None,
        diff_added=result.diff.added if result.diff else 0,
        diff_removed=result.diff.removed if result.diff else 0,
        state_patch=result.state_patch,
        finish=result.finish,
        ask=result.ask,
        effects_ref=None,
        duration_ms=duration_ms,
    )
    return await _with_effects(outcome, result.effects, blobs)


def refusal(refused: Refused) -> Result:
    """A refusal as the result the model reads."""
    return Result(mend(refused.text).encode(), ok=False, kind=refused.kind)


def clip(data: bytes, budget: int, ref: str) -> str:
    """Head and tail of a text within a budget of bytes, cut at characters; a line between says what is missing."""
    room = max(budget - _MARKER_ROOM, 0)
    begin, end = head(data, room - room // 2), tail(data, room // 2)
    left_out = len(data) - len(begin.encode()) - len(end.encode())
    return begin + _LEFT_OUT.format(left_out=left_out, ref=ref) + end


async def _with_effects(outcome: ToolOutcome, effects: tuple[FileEffect, ...], blobs: BlobStore) -> ToolOutcome:
    inline = outcome.model_copy(update={"effects": effects})
    if len(effects) <= MAX_INLINE_EFFECTS and len(canonical_json(inline.plain())) <= MAX_OUTCOME_BYTES:
        return inline
    ref = await blobs.put(canonical_json([effect.plain() for effect in effects]))
    return outcome.model_copy(update={"effects_ref": ref, "effects_count": len(effects)})
