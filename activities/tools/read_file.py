"""`read_file` shows numbered lines and the hash that an edit can name as its precondition."""

from __future__ import annotations

import asyncio

from activities.tools.arguments import schema
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.model.text import decode
from salience.model.tool import FileEffect, ToolSpec
from salience.workspace.files import Content, read
from salience.workspace.paths import locate, shown

MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_LINES = 2_000
MAX_LINE_BYTES = 2_000
HASH_DIGITS = 16
"""Digits of a content hash that are shown; any prefix of at least 8 serves as a precondition."""
_HEADER_BYTES = 512
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
    text = decode(content.data)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # the end of the last line begins no further one
    total = len(lines)
    start: int = args.get("start_line", 1)
    end: int = min(args.get("end_line", total), total)
    if start > max(total, 1) or (total and end < start):
        raise Refused(f"{path} has {total} lines; lines {start} to {args.get('end_line', total)} are not among them")
    room = budget - min(_HEADER_BYTES, budget // 4)
    width = len(str(end))
    body: list[str] = []
    last = start - 1
    for number in range(start, end + 1):
        line = f"{number:>{width}}\t{_cut(lines[number - 1].removesuffix(chr(13)))}\n"
        room -= len(line.encode())
        if body and (room < 0 or len(body) == MAX_LINES):
            break
        body.append(line)
        last = number
    mended = "" if content.data == text.encode() else ", not valid UTF-8: bad bytes are shown as U+FFFD"
    endings = ", CRLF line ends" if b"\r\n" in content.data else ""
    span = f"lines {start}-{last} of {total}" if total else "empty"
    header = f"{path} ({span}, {len(content.data)} bytes, sha256 {content.sha256[:HASH_DIGITS]}{endings}{mended})\n"
    more = f"[{end - last} more lines: go on with start_line {last + 1}]\n" if last < end else ""
    return Result(
        output=(header + "".join(body)).encode(),
        trailer=more,
        effects=(FileEffect(op="read", path=path, after_hash=content.sha256, size_bytes=len(content.data)),),
        whole=content.data if mended else None,
        truncated=last < end,
    )


def _cut(line: str) -> str:
    data = line.encode()
    if len(data) <= MAX_LINE_BYTES:
        return line
    return f"{data[:MAX_LINE_BYTES].decode('utf-8', 'ignore')}… [{len(data) - MAX_LINE_BYTES} more bytes in this line]"


TOOL = Tool(SPEC, _run)
