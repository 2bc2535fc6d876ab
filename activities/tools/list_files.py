"""`list_files` names the files under a folder, in the order of paths."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.result import Arguments, Result, Site, Tool
from activities.tools.ripgrep import lines
from salience.model.tool import ToolSpec

DEFAULT_LIMIT = 500
MAX_LIMIT = 5_000

SPEC = ToolSpec(
    name="list_files",
    description=(
        "List the files under a folder of the workspace, one path a line, sorted. Files that .gitignore leaves out and "
        ".git are skipped; empty folders do not appear."
    ),
    parameters=schema(
        {
            "path": {"type": "string", "minLength": 1, "description": "Folder to list. Default: the workspace."},
            "glob": {"type": "string", "minLength": 1, "description": "Only files like this, for example **/*.py."},
            "ignored": {"type": "boolean", "description": "Also files that .gitignore leaves out. Default false."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "description": "Most paths. Default 500."},
        }
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    limit: int = args.get("limit", DEFAULT_LIMIT)
    path = args.get("path", ".")
    found, more = await lines(
        site, ["--files"], path=path, glob=args.get("glob"), ignored=args.get("ignored", False), limit=limit
    )  # fmt: skip
    if not found:
        return Result(f"no files in {path}{' match' if 'glob' in args else ''}\n".encode())
    trailer = f"[the first {limit} files; list a folder below or raise limit]\n" if more else ""
    return Result("".join(f"{line}\n" for line in found).encode(), trailer=trailer, truncated=more)


TOOL = Tool(SPEC, _run)
