"""`record_decision` keeps what was decided and why; without existing evidence it counts as an assumption (spec PRJ-3)."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.cited import REFS, checked_size, cited, superseded
from activities.tools.result import Arguments, Result, Site, Tool
from salience.model.state import Decision, StatePatch
from salience.model.tool import ToolSpec

MAX_CHARACTERS = 1_000
MAX_ALTERNATIVES = 10

SPEC = ToolSpec(
    name="record_decision",
    description=(
        "Keep a decision with its reasons in view when the conversation is shortened. Without existing evidence it counts "
        "as an assumption."
    ),
    parameters=schema(
        {
            "decision": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CHARACTERS,
                "description": f"At most {MAX_CHARACTERS} characters.",
            },
            "rationale": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CHARACTERS,
                "description": f"At most {MAX_CHARACTERS} characters.",
            },
            "alternatives": {
                "type": "array",
                "maxItems": MAX_ALTERNATIVES,
                "items": {"type": "string", "minLength": 1, "maxLength": 300},
                "description": "What was considered and not taken.",
            },
            "evidence_refs": REFS,
            "decision_id": {
                "type": "string",
                "minLength": 1,
                "description": "The decision it changes. Default: a new one.",
            },
        },
        ("decision", "rationale"),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    state = await site.sources.state(site.session_id)
    ids = [made.decision_id for made in state.decisions]
    decision_id = superseded(args.get("decision_id"), f"decision:{site.call_id}", ids, "decision_id")
    evidence = await cited(site, state, args.get("evidence_refs", ()), own=decision_id)
    decision = Decision(
        decision_id=decision_id,
        decision=args["decision"],
        rationale_summary=args["rationale"],
        alternatives=tuple(args.get("alternatives", ())),
        evidence_refs=evidence.known,
        verified=evidence.verified,
    )
    patch = checked_size(StatePatch(decisions=(decision,)), "decision, rationale or alternatives")
    lead = (
        f"{decision_id} {'changed' if decision_id in ids else 'recorded'}{', verified' if decision.verified else ''}\n"
    )
    return Result(f"{lead}{evidence.told('decision_id')}".encode(), state_patch=patch)


TOOL = Tool(SPEC, _run)
