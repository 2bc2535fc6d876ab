"""A session for people: its standing, then its transcript in the order in which the model had it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from salience.cli.connection import connected, recorded
from salience.cli.options import Full, Json, SessionId
from salience.cli.output import fields, indented, json_out, say, short
from salience.cli.sessions import how_to_answer
from salience.errors import SalienceError
from salience.model.message import ModelResponse
from salience.model.state import OpenQuestion
from salience.model.text import decode, preview

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.projection.projection import SavedProjection
    from salience.projection.transcript import Entry

SHOWN_ENTRIES = 60
SHOWN_LINES = 12
SHOWN_BYTES = 2_000


def show(session: SessionId, full: Full = False, json_: Json = False) -> None:
    """Show a session and its transcript.

    Bounded to the latest entries and the first lines of each; --full shows all of it.
    """

    async def work(client: Salience) -> dict[str, Any]:
        saved = await recorded(client, session)
        return await _gather(client, session, saved, full)

    found = connected(work)
    if json_:
        json_out(found)
    else:
        _print(found, full)


async def _gather(client: Salience, session_id: str, saved: SavedProjection, full: bool) -> dict[str, Any]:
    from salience.client import session_of

    place = saved.workplace
    entries = [*await client.journal.transcript(session_id)]
    entries += [call.result for call in saved.transcript.calls if call.result is not None]
    entries += saved.transcript.pending
    earlier = 0 if full else max(0, len(entries) - SHOWN_ENTRIES)
    runs = await client.journal.runs(session_id)
    # A session that asked is paused without a workflow: only one whose run has not ended can answer.
    running = place.status in ("active", "paused") and place.end_reason is None
    status = await client.query(session_id, "status") if running else None
    return {
        "session": session_of(session_id, saved).plain() if place.config else {"session_id": session_id},
        "status": place.status,
        "end_reason": place.end_reason,
        "end_detail": place.end_detail,
        "step": (status or {}).get("step"),
        "answering": status is not None if running else None,
        "turn": place.turn,
        "model_calls": place.finished_model_calls,
        "events": saved.cursor.seq,
        "head": saved.head,
        "runs": [run.run_id for run in runs],
        "open_questions": [asked.plain() for asked in saved.state.open_questions],
        "earlier_entries": earlier,
        "transcript": [await _entry(client, entry, full) for entry in entries[earlier:]],
    }


async def _entry(client: Salience, entry: Entry, full: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "kind": entry.kind,
        "message_id": entry.message_id,
        "turn": entry.turn,
        "seq": entry.seq,
        "event_id": entry.event_id,
    }
    if entry.kind == "response":
        answer = await _response(client, entry)
        told["text"] = entry.preview if answer is None else answer.text
        if answer is not None and answer.calls:
            told["calls"] = [
                {"tool_call_id": call.tool_call_id, "name": call.name, "args": call.args} for call in answer.calls
            ]
    else:
        told["text"] = await _text(client, entry, full)
    if entry.kind == "result":
        told |= {"tool": entry.tool_name, "tool_call_id": entry.tool_call_id, "is_error": entry.is_error}
    if not full:
        told["text"] = preview(told["text"], SHOWN_BYTES)
    if entry.ref is not None:
        told["ref"] = entry.ref
    return told


async def _response(client: Salience, entry: Entry) -> ModelResponse | None:
    try:
        return ModelResponse.model_validate_json(await client.blobs.get(entry.ref or ""))
    except SalienceError:
        return None


async def _text(client: Salience, entry: Entry, full: bool) -> str:
    """The entry's own text; the preview stands for a blob that is gone, or too long to read for a few lines."""
    if entry.text is not None:
        return entry.text
    ref = entry.full_ref if full and entry.full_ref else entry.ref
    if ref is None or (not full and entry.size_bytes > 200_000):
        return entry.preview
    try:
        return decode(await client.blobs.get(ref))
    except SalienceError:
        return entry.preview


def _print(found: dict[str, Any], full: bool) -> None:
    session = found["session"]
    model, context = session.get("model_config", {}), session.get("context_config", {})
    ended = f"{found['end_reason']}{': ' + found['end_detail'] if found['end_detail'] else ''}"
    fields(
        (
            ("session", session["session_id"]),
            ("status", found["status"]),
            ("ended", ended if found["end_reason"] else None),
            ("doing", (found["step"] or "").replace("_", " ")),
            ("worker", "none answers — salience doctor" if found["answering"] is False else None),
            ("model", model.get("model")),
            ("window", f"{context['context_window_tokens']:,} tokens" if context else None),
            ("cwd", session.get("cwd")),
            ("turns", found["turn"]),
            ("model calls", found["model_calls"]),
            ("events", found["events"]),
            ("runs", len(found["runs"])),
            ("created", session.get("created_at")),
            ("updated", session.get("updated_at")),
        )
    )
    say()
    if found["earlier_entries"]:
        say(f"… {found['earlier_entries']} earlier entries (--full)", "dim")
    for entry in found["transcript"]:
        _print_entry(entry, 0 if full else SHOWN_LINES)
    if questions := [str(OpenQuestion.model_validate(asked)) for asked in found["open_questions"]]:
        say("open questions:", "head")
        for question in questions:
            say(indented(question))
        say(f"  answer: {how_to_answer(session['session_id'])}", "dim")


def _print_entry(entry: dict[str, Any], lines: int) -> None:
    match entry["kind"]:
        case "prompt":
            say(f"user  ({entry['message_id']})", "user")
        case "response":
            say(f"model  turn {entry['turn']}", "model")
        case _:
            mark = " failed" if entry["is_error"] else ""
            say(f"tool  {entry['tool']}{mark}  ({entry['tool_call_id']})", "bad" if entry["is_error"] else "tool")
    if entry["text"].strip():
        say(indented(entry["text"], lines=lines))
    for call in entry.get("calls", ()):
        args = ", ".join(f"{name}={value!r}" for name, value in call["args"].items())
        say(f"    → {call['name']}({short(args, 200 if lines else 100_000)})", "tool")
    say()
