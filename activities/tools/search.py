"""`search` finds lines by regular expression, in the order of paths, as many as were asked for."""

from __future__ import annotations

from activities.tools.arguments import schema
from activities.tools.result import Arguments, Result, Site, Tool
from activities.tools.ripgrep import lines
from salience.model.tool import ToolSpec

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
_LINE_BYTES = 300

SPEC = ToolSpec(
    name="search",
    description=(
        "Search file contents with a regular expression (Rust syntax, as ripgrep takes it). Gives path:line:text, "
        "sorted by path. Files that .gitignore leaves out, binary files and .git are skipped."
    ),
    parameters=schema(
        {
            "pattern": {"type": "string", "minLength": 1, "maxLength": 10_000, "description": "What to search for."},
            "path": {
                "type": "string",
                "minLength": 1,
                "description": "Folder or file to search. Default: the workspace.",
            },
            "glob": {"type": "string", "minLength": 1, "description": "Only files like this, for example **/*.py."},
            "literal": {"type": "boolean", "description": "Take the pattern as plain text. Default false."},
            "case_sensitive": {"type": "boolean", "description": "Default true."},
            "ignored": {
                "type": "boolean",
                "description": "Also search files that .gitignore leaves out. Default false.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "description": "Most lines. Default 100."},
        },
        ("pattern",),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    limit: int = args.get("limit", DEFAULT_LIMIT)
    options = [
        "--line-number", "--with-filename", "--no-heading", f"--max-columns={_LINE_BYTES}", "--max-columns-preview",
        "--max-filesize=50M", *(["--fixed-strings"] if args.get("literal") else []),
        "--case-sensitive" if args.get("case_sensitive", True) else "--ignore-case", f"--regexp={args['pattern']}",
    ]  # fmt: skip
    path = args.get("path", ".")
    found, more = await lines(
        site, options, path=path, glob=args.get("glob"), ignored=args.get("ignored", False), limit=limit
    )  # fmt: skip
    if not found:
        where = f" in {path}" + (f" ({args['glob']})" if "glob" in args else "")
        return Result(f"no line matches{where}\n".encode())
    trailer = f"[the first {limit} matching lines; narrow the search or raise limit]\n" if more else ""
    return Result("".join(f"{line}\n" for line in found).encode(), trailer=trailer, truncated=more)


TOOL = Tool(SPEC, _run)
