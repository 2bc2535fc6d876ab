"""`note_fact` keeps something established in the session's state, or an assumption when nothing shows it (spec PRJ-3)."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.cited import REFS, checked_size, cited, superseded
from activities.tools.result import Arguments, Result, Site, Tool
from salience.model.state import Fact, StatePatch
from salience.model.tool import ToolSpec

MAX_CHARACTERS = 2_000

SPEC = ToolSpec(
    name="note_fact",
    description=(
        "Keep a fact you have established in view when the conversation is shortened. Without existing sources it is kept "
        "as an assumption."
    ),
    parameters=schema(
        {
            "content": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CHARACTERS,
                "description": f"In one or two sentences; at most {MAX_CHARACTERS} characters.",
            },
            "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "How sure you are."},
            "source_refs": REFS,
            "fact_id": {"type": "string", "minLength": 1, "description": "The fact it corrects. Default: a new one."},
        },
        ("content", "confidence"),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    state = await site.sources.state(site.session_id)
    ids = [fact.fact_id for fact in state.facts]
    fact_id = superseded(args.get("fact_id"), f"fact:{site.call_id}", ids, "fact_id")
    sources = await cited(site, state, args.get("source_refs", ()), own=fact_id)
    fact = Fact(
        fact_id=fact_id,
        content=args["content"],
        confidence=args["confidence"],
        source_refs=sources.known,
        verified=sources.verified,
    )
    patch = checked_size(StatePatch(facts=(fact,)), "content, or name fewer source_refs")
    lead = f"{fact_id} {'corrected' if fact_id in ids else 'noted'}{', verified' if fact.verified else ''}\n"
    return Result(f"{lead}{sources.told('fact_id')}".encode(), state_patch=patch)


TOOL = Tool(SPEC, _run)
