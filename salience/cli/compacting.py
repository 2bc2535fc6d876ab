"""A compaction is shown by what it frees, what it keeps and what was checked, before it is done and after (spec CMP-10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from salience.cli.connection import connected, recorded
from salience.cli.options import Json, SessionId
from salience.cli.output import fields, json_out, say, table
from salience.errors import SessionFailed

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.compaction import Compaction, Refusal
    from salience.model import calls
    from salience.model.compaction import Checkpoint, CompactionChecks
    from salience.model.event import Event


def compact(
    session: SessionId,
    focus: Annotated[
        str, typer.Argument(metavar="FOCUS", help="What the summary shall pay attention to.", show_default=False)
    ] = "",
    window: Annotated[
        int | None,
        typer.Option(
            "--window", min=1_000, help="Tokens of the window to compact for; else the session's.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    json_: Json = False,
) -> None:
    """Put a summary in the place of older history; the log keeps all of it, and `rollback` brings it back.

    A running session does it between two turns; an ended one gets a run of its own for it.
    """

    async def plan(client: Salience) -> Compaction | Refusal:
        return await client.plan_compaction(session, focus=focus, window_tokens=window)

    async def work(client: Salience) -> calls.Compacted:
        return await client.compact(session, focus=focus, window_tokens=window)

    if dry_run:
        from salience.compaction import Refusal

        planned = connected(plan)
        if json_:
            json_out(_planned(session, planned))
        elif isinstance(planned, Refusal):
            raise SessionFailed(f"nothing would be compacted: {planned.message}")
        else:
            _print(session, planned.checkpoint, planned.checks, "would be")
            say()
            say(planned.text)
        return
    done = connected(work)
    if json_:
        json_out({"session_id": session, **done.plain()})
    if done.checkpoint is None:
        raise SessionFailed(f"nothing was compacted: {done.message}", mend=f"salience context {session}")
    if not json_:
        _print(session, done.checkpoint, done.checks, "are")


def rollback(
    session: SessionId,
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, help="Checkpoint that shall serve, 0: the full history; else as far back as fits."),
    ] = None,
    json_: Json = False,
) -> None:
    """Deactivate a compaction: what it summarised is back in the view, or where that does not fit, the one below serves."""

    async def work(client: Salience) -> calls.RolledBack:
        return await client.rollback(session, to=to)

    done = connected(work)
    if json_:
        json_out({"session_id": session, **done.plain()})
    if done.refused:
        raise SessionFailed(f"nothing was rolled back: {done.refused}", mend=f"salience compactions {session}")
    if not json_:
        serving = f"checkpoint {done.checkpoint.number} serves" if done.checkpoint else "the full history is back"
        say(f"{session}: {serving}; {done.tokens_before:,} → {done.tokens_after:,} tokens")


def compactions(session: SessionId, json_: Json = False) -> None:
    """List a session's compactions: sizes, checks, what serves now."""

    async def work(client: Salience) -> tuple[list[Event], str]:
        place = (await recorded(client, session)).workplace
        return [*await client.compactions(session)], place.checkpoint.compaction_id if place.checkpoint else ""

    events, serving = connected(work)
    if json_:
        json_out({"session_id": session, "serving": serving or None, "events": [event.plain() for event in events]})
        return
    rows = [row for event in events if (row := _row(event, serving)) is not None]
    if not rows:
        say("no compactions")
        return
    table(
        ("EVENT", "WHEN", "COMPACTION", "TRIGGER", "BEFORE", "AFTER", "MESSAGES", "LOSS", ""),
        rows,
        right=(0, 4, 5, 6, 7),
    )


def _row(event: Event, serving: str) -> tuple[Any, ...] | None:
    from salience.model import event as ev

    when = event.timestamp[:19].replace("T", " ")
    match event.payload:
        case ev.CompactionCompleted(checkpoint=made, checks=checks) as done:
            mark = f"checkpoint {made.number}, serves" if made.compaction_id == serving else f"checkpoint {made.number}"
            sizes = (f"{made.tokens_before:,}", f"{made.tokens_after:,}", made.messages)
            return (
                event.seq,
                when,
                made.compaction_id,
                done.trigger,
                *sizes,
                f"{checks.estimated_information_loss:.0%}",
                mark,
            )
        case ev.CompactionFailed() as failed:
            before = f"{failed.tokens_before:,}" if failed.tokens_before else ""
            return (event.seq, when, "", failed.trigger, before, "", "", "", f"refused: {failed.message}")
        case ev.CompactionRolledBack(checkpoint=below) as rolled:
            mark = f"rolled back; {f'checkpoint {below.number} serves' if below else 'full history'}"
            return (
                event.seq,
                when,
                rolled.compaction_id,
                "",
                f"{rolled.tokens_before:,}",
                f"{rolled.tokens_after:,}",
                "",
                "",
                mark,
            )
        case _:
            return None


def _print(session: str, made: Checkpoint, checks: CompactionChecks | None, verb: str) -> None:
    kept = f"verbatim from {made.first_kept_message_id} on"
    fields(
        (
            ("compaction", f"{made.compaction_id}, checkpoint {made.number} of {session}"),
            ("tokens", f"{made.tokens_before:,} → {made.tokens_after:,}"),
            ("summarised", f"{made.messages} messages {verb} in the summary only; history stands {kept}"),
            ("checked", _checked(checks)),
        )
    )


def _checked(checks: CompactionChecks | None) -> str:
    if checks is None:
        return "-"
    named = {name: value for name, value in checks.plain().items() if isinstance(value, bool)}
    wrong = [name for name, fine in named.items() if not fine]
    loss = f"{checks.estimated_information_loss:.0%} of its named items are not in its text"
    return f"{', '.join(wrong)} broken" if wrong else f"{len(named)} rules hold; {loss}"


def _planned(session: str, planned: Compaction | Refusal) -> dict[str, Any]:
    from salience.compaction import Refusal

    if isinstance(planned, Refusal):
        return {
            "session_id": session,
            "kind": planned.kind,
            "message": planned.message,
            "tokens_before": planned.tokens_before,
        }
    return {
        "session_id": session,
        "checkpoint": planned.checkpoint.plain(),
        "record": planned.record.plain(),
        "checks": planned.checks.plain(),
        "text": planned.text,
    }
