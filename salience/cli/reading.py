"""What the stores know of sessions, running or ended: lists, events, state, figures."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from salience.cli.connection import connected, recorded
from salience.cli.options import Json, SessionId, event_name
from salience.cli.output import fields, json_out, say, short, table, tell
from salience.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from salience.client import Salience
    from salience.model.event import Event
    from salience.model.state import State

SHOWN_FILES = 30
At = Annotated[
    str | None,
    typer.Option("--at", help="As of this event: an event id or a seq.", show_default=False, callback=event_name),
]


def list_(
    status: Annotated[
        str | None, typer.Option("--status", help="Only sessions of this status.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most sessions to list.")] = 50,
    json_: Json = False,
) -> None:
    """List sessions, the latest change first."""
    from salience.model.session import SessionStatus

    if status is not None and status not in get_args(SessionStatus):
        raise UsageError(f"no such status: {status}", mend=f"one of {', '.join(get_args(SessionStatus))}")

    async def work(client: Salience) -> list[dict[str, Any]]:
        return await client.list(limit=limit, status=status)

    rows = connected(work)
    if json_:
        json_out(rows)
    elif not rows:
        tell("no sessions — salience run TASK")
    else:
        heads = ("SESSION", "STATUS", "REASON", "EVENTS", "UPDATED", "MODEL", "TASK")
        names = ("session_id", "status", "end_reason", "seq", "updated_at", "model", "title")
        shown = [[str(row[name] or "")[: 19 if name == "updated_at" else 200] for name in names] for row in rows]
        table(heads, shown, right=(3,))


def events(
    session: SessionId,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
    upto: Annotated[
        int | None, typer.Option("--upto", min=0, help="Only events up to this seq.", show_default=False)
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only events of this type; may be repeated.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most events to print.", show_default=False)
    ] = None,
    from_history: Annotated[
        bool,
        typer.Option("--from-history", help="Decode Temporal's history, or its archive, instead of the journal."),
    ] = False,
    json_: Json = False,
) -> None:
    """Print the events of a session's log.

    With --json one event a line, as `salience schema Event` describes it; with --from-history also `source`, which is
    `temporal` or `archive`.
    """
    from salience.cli.timeline import clock, describe, style_of
    from salience.model.event import PAYLOADS

    wanted = frozenset(type_ or ())
    for name in sorted(wanted - PAYLOADS.keys()):
        near = get_close_matches(name, PAYLOADS, n=1) or sorted(PAYLOADS)
        raise UsageError(f"no event type {name!r}", mend=f"perhaps {', '.join(near)}")

    async def work(client: Salience) -> int:
        printed = 0
        async for event, origin in _events(client, session, after, upto, from_history):
            if wanted and event.type not in wanted:
                continue
            if json_:
                json_out({**event.plain(), **({"source": origin} if origin else {})})
            else:
                words = short(describe(event.payload), 200)
                line = f"{event.seq:>6}  {clock(event.timestamp)}  {event.actor:6}  {event.type:21}  {words}"
                say(line.rstrip(), style_of(event))
            printed += 1
            if printed == limit:
                break
        return printed

    if not connected(work) and not json_:
        tell("no such events")


async def _events(
    client: Salience, session_id: str, after: int, upto: int | None, from_history: bool
) -> AsyncIterator[tuple[Event, str]]:
    """Events with where they were read; that is empty for the journal."""
    if not from_history:
        await recorded(client, session_id)
        async for event in client.events(session_id, after=after, upto=upto):
            yield event, ""
        return
    from salience.cli.raw import raw_events

    async for event, origin in raw_events(client, session_id):
        if event.seq > after and (upto is None or event.seq <= upto):
            yield event, origin


def state(session: SessionId, at: At = None, json_: Json = False) -> None:
    """Show where the work stands, now or at any past event."""

    async def work(client: Salience) -> State:
        await recorded(client, session)
        return await client.state(session, at=at)

    found = connected(work)
    if json_:
        json_out(found)
    else:
        _show_state(found)


def stats(session: SessionId, json_: Json = False) -> None:
    """Show a session's figures: tokens, time, calls, reductions."""

    async def work(client: Salience) -> dict[str, Any]:
        return (await recorded(client, session)).stats.model_dump(mode="json")

    found = connected(work)
    if json_:
        json_out(found)
        return
    plain = [(name, _figure(value)) for name, value in found.items() if not isinstance(value, dict)]
    parts = [(name, value) for name, value in found.items() if isinstance(value, dict)]
    fields([*plain, *((f"{name}.{part}", _figure(value)) for name, under in parts for part, value in under.items())])


def _figure(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value


def _show_state(state: State) -> None:
    goal, plan, rules = state.goal, state.plan, state.constraints
    fields(
        (
            ("session", state.session_id),
            ("as of event", state.source_event_id),
            ("version", state.version),
            ("goal", goal.user_goal),
            ("current task", goal.current_task),
        )
    )
    marks = {"done": "x", "in_progress": ">", "blocked": "!", "skipped": "-"}
    _section("acceptance criteria", goal.acceptance_criteria)
    steps = [f"[{marks.get(step.status, ' ')}] {step.step_id} {step.title}" for step in plan.steps]
    _section(f"plan ({plan.status})", steps)
    _section("hard constraints", rules.hard)
    _section("soft constraints", rules.soft)
    _section("preferences", rules.user_preferences)
    facts = [(f"{fact.content} ({fact.confidence:.0%})", fact.verified) for fact in state.facts]
    _section("facts", [words for words, verified in facts if verified])
    _section("assumptions, not verified", [words for words, verified in facts if not verified])
    decisions = [
        f"{one.decision}: {one.rationale_summary}{'' if one.verified else ' (rests on an assumption)'}"
        for one in state.decisions
    ]
    _section("decisions", decisions)
    files = [
        f"{path}  {'modified' if file.modified else 'read'}{f', {file.change_summary}' if file.change_summary else ''}"
        for path, file in state.files.items()
    ]
    _section("files", files)
    _section("artifacts", [f"{one.artifact_id}  {one.summary}" for one in state.artifacts])
    _section("failed calls", [f"{one.name} {one.kind}: {one.message}" for one in state.tool_failures])
    _section("open questions", [str(asked) for asked in state.open_questions])


def _section(name: str, lines: Any) -> None:
    if not lines:
        return
    say(f"{name}:", "head")
    for line in list(lines)[-SHOWN_FILES:]:
        say(f"  {short(line, 200)}")
    if len(lines) > SHOWN_FILES:
        say(f"  … {len(lines) - SHOWN_FILES} earlier ones (--json)", "dim")
