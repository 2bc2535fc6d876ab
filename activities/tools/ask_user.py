"""`ask_user` ends the run with a question; what the user says next is the answer, whenever that is (spec LOOP-1)."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.cited import checked_size
from activities.tools.result import Arguments, Result, Site, Tool
from salience.model.state import OpenQuestion, StatePatch
from salience.model.tool import ToolSpec

MAX_CHARACTERS = 2_000
MAX_CHOICES = 10

SPEC = ToolSpec(
    name="ask_user",
    description=(
        "Ask the user what only they can answer, and stop until they have; their next message is the answer. Ask only when "
        "you cannot sensibly go on without it."
    ),
    parameters=schema(
        {
            "question": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_CHARACTERS,
                "description": f"With what they need to answer it; at most {MAX_CHARACTERS} characters.",
            },
            "choices": {
                "type": "array",
                "maxItems": MAX_CHOICES,
                "items": {"type": "string", "minLength": 1, "maxLength": 300},
                "description": "Answers to choose from; they may answer otherwise.",
            },
        },
        ("question",),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    asked = OpenQuestion(
        question_id=f"question:{site.call_id}",
        question=args["question"],
        choices=tuple(args.get("choices", ())),
        tool_call_id=site.call_id,
    )
    patch = checked_size(StatePatch(open_questions=(asked,)), "question or choices")
    trailer = "[the user was asked; what they say next is the answer]\n"
    return Result(f"{asked}\n".encode(), trailer=trailer, state_patch=patch, ask=True)


TOOL = Tool(SPEC, _run)
