"""`write_file` gives a file exactly the content named, making its folders."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.change import HASH_RULE, MAX_FILE_BYTES, Draft, change
from activities.tools.result import Arguments, Result, Site, Tool
from salience.model.tool import ToolSpec

SPEC = ToolSpec(
    name="write_file",
    description=(
        "Create a file, or replace its whole content. Missing folders are made. To change part of a file use edit_file."
    ),
    parameters=schema(
        {
            "path": {"type": "string", "minLength": 1, "description": "Path relative to the workspace."},
            "content": {"type": "string", "maxLength": MAX_FILE_BYTES, "description": "The whole content."},
            "expected_hash": HASH_RULE,
        },
        ("path", "content"),
    ),
    tool_class="idempotent",
)


def _rewrite(path: str, args: Arguments, before: bytes | None) -> Draft:
    after: bytes = args["content"].encode()
    return Draft(after, f"{'created' if before is None else 'replaced'} {path}, {len(after)} bytes")


async def _run(site: Site, args: Arguments) -> Result:
    return await change(site, args, _rewrite)


TOOL = Tool(SPEC, _run)
