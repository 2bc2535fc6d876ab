"""`read_artifact` reads what was too long to be shown, in parts; only what this session's own record names (EVT-6)."""

from __future__ import annotations

import asyncio
import re

from activities.tools.arguments import schema
from activities.tools.paging import MAX_LINE_BYTES, lines_in, offset_of, page
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from activities.tools.ripgrep import lines_of
from salience.errors import BlobCorrupt, NotFound
from salience.model.text import decode, preview
from salience.model.tool import ToolSpec
from salience.store.sources import MIN_HASH_DIGITS

MAX_CONTEXT = 50
MAX_MATCHES = 1_000
_HASH_SHOWN = 16
_REST = 140
"""Bytes that the end of the header and the line that says how to go on take at most."""
_NUMBERED = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)

SPEC = ToolSpec(
    name="read_artifact",
    description=(
        "Read an output, diff or text of this session that was cut, masked or only named: numbered lines, lines that match "
        "a pattern, or, for very long lines, bytes from an offset. The last line says how to go on."
    ),
    parameters=schema(
        {
            "ref": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "What follows blob: in a result, the id of an earlier call, or an artifact's id.",
            },
            "start_line": {"type": "integer", "minimum": 1, "description": "First line, counted from 1. Default 1."},
            "end_line": {"type": "integer", "minimum": 1, "description": "Last line, included. Default: the last."},
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": 10_000,
                "description": "Only lines that match this regular expression, as in search.",
            },
            "context": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_CONTEXT,
                "description": "Lines around each match. Default 0.",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "First byte, from 0."},
            "limit": {"type": "integer", "minimum": 1, "description": "Most bytes from offset. Default: what fits."},
        },
        ("ref",),
    ),
    tool_class="read",
)


async def _run(site: Site, args: Arguments) -> Result:
    _check(args)
    name: str = args["ref"].strip()
    ref, what, data = await _bytes(site, name)
    about = f"blob:{ref[:_HASH_SHOWN]}… ({preview(what, 100)}, {len(data)} bytes"
    space = site.config.context_config.tool_result_bytes - len(about.encode()) - _REST
    if "offset" in args:
        return await asyncio.to_thread(_slice, about, data, args, space)
    if "pattern" in args:
        return await _matches(about, data, args, space)
    part = await asyncio.to_thread(page, name, data, args.get("start_line", 1), args.get("end_line"), space)
    output = f"{about}, {part.span})\n{part.text}"
    return Result(output.encode(), trailer=part.more, truncated=bool(part.more))


def _check(args: Arguments) -> None:
    by_lines = [name for name in ("start_line", "end_line", "pattern", "context") if name in args]
    if "offset" in args and by_lines:
        raise Refused(f"offset counts bytes and does not go with {', '.join(by_lines)}", kind="invalid_arguments")
    for name, needed in (("limit", "offset"), ("context", "pattern")):
        if name in args and needed not in args:
            raise Refused(f"{name} needs {needed}", kind="invalid_arguments")


async def _bytes(site: Site, name: str) -> tuple[str, str, bytes]:
    found = await site.sources.artifact(site.session_id, name)
    if found is None:
        raise Refused(
            f"this session has no artifact {preview(name, 100)}. Name what follows blob: in a result (at least "
            f"{MIN_HASH_DIGITS} digits), the id of a call from an earlier turn, or an artifact's id such as diff:CALL"
        )
    try:
        return found.ref, found.what, await site.blobs.get(found.ref)
    except BlobCorrupt:
        raise Refused(
            f"the stored bytes of blob:{found.ref} were changed after they were stored: they no longer match their hash "
            "and are not shown. Get the content again from where it came from"
        ) from None
    except NotFound:
        raise Refused(
            f"the store has lost blob:{found.ref} ({found.what}). Get the content again from where it came from"
        ) from None


def _slice(about: str, data: bytes, args: Arguments, space: int) -> Result:
    start: int = args["offset"]
    if start > len(data):
        raise Refused(f"it has {len(data)} bytes; {start} is beyond its end")
    size = min(args.get("limit", space), space, len(data) - start)
    end = _at_a_character(data, start, start + size)
    text = decode(data[start:end])
    if len(text.encode()) > space:
        # Bytes that are no text are shown as three each.
        end = start + space // 3
        text = decode(data[start:end])
    more = f"[{len(data) - end} more bytes: go on with offset {end}]\n" if end < len(data) else ""
    output = f"{about}, bytes {start}-{end})\n{text}"
    return Result(output.encode(), trailer=more, truncated=bool(more))


def _at_a_character(data: bytes, start: int, end: int) -> int:
    """The cut at or a little before `end` after which a character begins, so that parts join."""
    for back in range(4):
        if end - back <= start:
            break
        if end - back == len(data) or data[end - back] not in range(0x80, 0xC0):
            return end - back
    return end


async def _matches(about: str, data: bytes, args: Arguments, space: int) -> Result:
    start: int = args.get("start_line", 1)
    searched, total = await asyncio.to_thread(_between, data, start, args.get("end_line"))
    options = [
        "--line-number", f"--max-columns={MAX_LINE_BYTES}", "--max-columns-preview", f"--context={args.get('context', 0)}",
        f"--regexp={args['pattern']}",
    ]  # fmt: skip
    found, more = await lines_of(searched, options, limit=MAX_MATCHES)
    if not found:
        return Result(f"{about}, {total} lines)\nno line matches\n".encode())
    shown: list[str] = []
    last = start - 1
    for line in found:
        numbered = _NUMBERED.fullmatch(line)
        number = int(numbered[1]) + start - 1 if numbered else last
        text = f"{number}{numbered[2]}{numbered[3]}\n" if numbered else f"{line}\n"
        space -= len(text.encode())
        if shown and space < 0:
            more = True
            break
        shown.append(text)
        last = number
    trailer = f"[more lines match: go on with start_line {last + 1}]\n" if more else ""
    output = f"{about}, {total} lines)\n{''.join(shown)}"
    return Result(output.encode(), trailer=trailer, truncated=more)


def _between(data: bytes, start: int, end: int | None) -> tuple[bytes, int]:
    """The bytes of some lines, and how many lines there are in all."""
    first = offset_of(data, start)
    last = len(data) if end is None else offset_of(data, end + 1)
    return (data if (first, last) == (0, len(data)) else data[first:last]), lines_in(data)


TOOL = Tool(SPEC, _run)
