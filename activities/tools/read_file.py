"""`read_file` shows numbered lines and the hash that an edit can name as its precondition."""

from __future__ import annotations

import asyncio

from activities.tools.arguments import schema
from activities.tools.paging import is_text, page, room
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.model.tool import FileEffect, ToolSpec
from salience.workspace.files import Content, read
from salience.workspace.paths import locate, shown

MAX_FILE_BYTES = 512 * 1024 * 1024
HASH_DIGITS = 16
"""Digits of a content hash that are shown; any prefix of at least 8 serves as a precondition."""
_SNIFF_BYTES = 8192

SPEC = ToolSpec(
    name="read_file",
    description=(
        "Read a text file of the workspace. Gives numbered lines under a header with the path, the number of lines and "
        "the content's sha256 prefix, which edit_file and write_file take as expected_hash. Long files come in parts: "
        "the last line says how to go on."
    ),
    parameters=schema(
        {
            "path": {"type": "string", "minLength": 1, "description": "Path relative to the workspace."},
            "start_line": {"type": "integer", "minimum": 1, "description": "First line, counted from 1. Default 1."},
            "end_line": {"type": "integer", "minimum": 1, "description": "Last line, included. Default: the last."},
        },
        ("path",),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    path, content = await asyncio.to_thread(_read, site, args["path"])
    if b"\x00" in content.data[:_SNIFF_BYTES]:
        raise Refused(
            f"{path} is a binary file of {len(content.data)} bytes (sha256 {content.sha256[:HASH_DIGITS]}); "
            "look into it with run_command, for example with file or xxd"
        )
    return await asyncio.to_thread(_render, path, content, args, site.config.context_config.tool_result_bytes)


def _read(site: Site, named: str) -> tuple[str, Content]:
    with locate(site.workspace, named) as spot:
        if spot.is_folder:
            raise Refused(f"{spot.path} is a folder; list_files shows what is in it")
        content = read(spot, limit=MAX_FILE_BYTES)
        if content is None:
            raise Refused(f"there is no file {spot.path}; list_files or search shows what there is")
        return shown(spot.path), content


def _render(path: str, content: Content, args: Arguments, budget: int) -> Result:
    part = page(path, content.data, args.get("start_line", 1), args.get("end_line"), room(budget))
    mended = "" if is_text(content.data) else ", not valid UTF-8: bad bytes are shown as U+FFFD"
    endings = ", CRLF line ends" if b"\r\n" in content.data else ""
    about = f"{part.span}, {len(content.data)} bytes, sha256 {content.sha256[:HASH_DIGITS]}{endings}{mended}"
    return Result(
        output=f"{path} ({about})\n{part.text}".encode(),
        trailer=part.more,
        effects=(FileEffect(op="read", path=path, after_hash=content.sha256, size_bytes=len(content.data)),),
        whole=content.data if mended else None,
        truncated=bool(part.more),
    )


TOOL = Tool(SPEC, _run)
