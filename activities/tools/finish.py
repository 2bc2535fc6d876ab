"""`finish` says that the task is done; the run ends with its summary as the answer."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.result import Arguments, Result, Site, Tool
from salience.model.tool import ToolSpec

SPEC = ToolSpec(
    name="finish",
    description="End the task. Say in the summary what was done, what was checked and what is left open.",
    parameters=schema(
        {"summary": {"type": "string", "minLength": 1, "maxLength": 100_000, "description": "The answer to the user."}},
        ("summary",),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    del site
    return Result(args["summary"].encode(), finish=True)


TOOL = Tool(SPEC, _run)
