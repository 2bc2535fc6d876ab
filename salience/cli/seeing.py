"""What the model saw stands beside what was left out and why, for running and ended sessions alike (spec CTX-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from salience.cli.connection import connected, recorded
from salience.cli.options import Full, Json, SessionId, event_name
from salience.cli.output import bar, fields, indented, json_out, say, table

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.model.bundle import ContextBundle
    from salience.model.message import Block

SHOWN_SEGMENTS = 60


def context(
    session: SessionId,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="As of this event (id or seq), or a bundle id; else the latest.",
            show_default=False,
            callback=event_name,
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the compiled messages themselves.")] = False,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", help="Show what changed since the context as of this event or bundle.", show_default=False
        ),
    ] = None,
    full: Full = False,
    json_: Json = False,
) -> None:
    """Show what the model saw, and what was left out and why.

    Read from the store, so it works for running and ended sessions and without a worker.
    """

    async def work(client: Salience) -> ContextBundle:
        await recorded(client, session)
        return await client.context(session, at=at, messages=text)

    if diff is not None:
        _diff(session, diff, at, full, json_)
        return
    bundle = connected(work)
    if json_:
        json_out(bundle)
    elif text:
        _print_messages(bundle)
    else:
        _print_bundle(bundle, full)


def _diff(session: str, since: str, at: str | None, full: bool, json_: bool) -> None:
    from salience.context.explain import change_rows

    async def both(client: Salience) -> tuple[ContextBundle, ContextBundle]:
        await recorded(client, session)
        return await client.context(session, at=since), await client.context(session, at=at)

    before, after = connected(both)
    rows = change_rows(before, after)
    if json_:
        sides = {
            name: {
                "bundle_id": b.bundle_id,
                "source_seq": b.source_seq,
                "tokens": b.tokens.plain(),
                "view": b.view.plain(),
            }
            for name, b in (("before", before), ("after", after))
        }
        json_out({"session_id": session, **sides, "changes": [row._asdict() for row in rows]})
        return
    fields(
        (
            ("before", f"{before.bundle_id}: {before.tokens.total:,} tokens, {before.view.projection_mode}"),
            ("after", f"{after.bundle_id}: {after.tokens.total:,} tokens, {after.view.projection_mode}"),
        )
    )
    say()
    if not rows:
        say("nothing changed")
        return
    shown = rows if full else rows[-SHOWN_SEGMENTS:]
    table(
        ("SEGMENT", "SECTION", "", "TOKENS", "WHY"),
        [(r.segment_id, r.section, r.change, f"{r.tokens:+,}", r.reason) for r in shown],
        right=(3,),
    )
    if len(shown) < len(rows):
        say(f"… {len(rows) - len(shown)} more (--full)", "dim")


def _print_bundle(bundle: ContextBundle, full: bool) -> None:
    from salience.context.explain import left_out_rows, section_rows

    tokens, view = bundle.tokens, bundle.view
    usable = tokens.window - tokens.reserved
    share = tokens.total / max(1, usable)
    fields(
        (
            ("context", f"{bundle.bundle_id} of turn {bundle.turn}, model call {bundle.call_index}"),
            ("built from", f"event {bundle.source_seq} ({bundle.source_event_id})"),
            ("epoch", f"{bundle.epoch} ({bundle.epoch_reason.replace('_', ' ')}), {bundle.decision.replace('_', ' ')}"),
            ("view", f"{view.projection_mode}: {view.history_message_count} of {view.source_message_count} messages"),
            ("tokens", f"{tokens.total:,} of {usable:,} usable ({tokens.reserved:,} of {tokens.window:,} reserved)"),
            ("", f"{bar(share, 40)} {share:.0%}"),
            ("counted by", f"{bundle.tokenizer}, built by {bundle.builder_version}"),
        )
    )
    say()
    rows = [(r.section, r.segments, f"{r.tokens:,}", f"{r.share:.0%}", bar(r.share)) for r in section_rows(bundle)]
    table(("SECTION", "SEGMENTS", "TOKENS", "SHARE", ""), rows, right=(1, 2, 3))
    say()
    segments = bundle.segments if full else _bounded(bundle)
    table(
        ("SEGMENT", "SECTION", "ROLE", "TRUST", "FRESH", "PRIORITY", "TOKENS", "REASON", "SOURCE"),
        [
            (
                s.segment_id, s.section, s.role, s.trust, s.freshness, s.priority, f"{s.tokens:,}",
                f"{s.reason}{' (masked)' if s.masked else ''}", ", ".join(s.source_refs),
            )
            for s in segments
        ],
        right=(5, 6),
    )  # fmt: skip
    if len(segments) < len(bundle.segments):
        say(f"… {len(bundle.segments) - len(segments)} older segments (--full)", "dim")
    say()
    left_out = left_out_rows(bundle)
    if not left_out:
        say("nothing was left out")
        return
    shown = left_out if full else left_out[-SHOWN_SEGMENTS:]
    table(("LEFT OUT", "TOKENS", "WHY"), [(r.segment_id, f"{r.tokens:,}", r.why) for r in shown], right=(1,))
    if len(shown) < len(left_out):
        say(f"… {len(left_out) - len(shown)} more (--full)", "dim")


def _bounded(bundle: ContextBundle) -> list[object]:
    """Everything but the older part of a long transcript."""
    transcript = [s for s in bundle.segments if s.section == "transcript"]
    hidden = {s.segment_id for s in transcript[: max(0, len(transcript) - SHOWN_SEGMENTS)]}
    return [s for s in bundle.segments if s.segment_id not in hidden]


def _print_messages(bundle: ContextBundle) -> None:
    for message in bundle.messages:
        say(f"[{message.role}{f' · {message.label}' if message.label else ''}]", "head")
        for block in message.content:
            say(indented(_block(block)))
        say()


def _block(block: Block) -> str:
    match block.type:
        case "text" | "summary":
            return block.text
        case "tool_call":
            import json

            return f"→ {block.name}({json.dumps(block.args, ensure_ascii=False)}) [{block.tool_call_id}]"
        case "tool_result":
            return f"{'error' if block.is_error else 'result'} of {block.tool_call_id}:\n{block.text}"
        case "reasoning":
            return f"(opaque reasoning of {block.provider}, returned only to it)"
        case _:
            return f"({block.type} {block.uri})"
