"""`edit_file` replaces a text that occurs exactly once; where it does not, it says where it almost does."""

from __future__ import annotations

import re

from activities.tools.arguments import schema
from activities.tools.change import HASH_RULE, Draft, change
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.model.text import decode, preview
from salience.model.tool import ToolSpec

_SHOWN_LINES = 10
_SHOWN_BYTES = 200

SPEC = ToolSpec(
    name="edit_file",
    description=(
        "Replace text in a file. old_text must match the file exactly, white space included, and occur exactly once, "
        "unless replace_all is set: name enough lines around the change. Line ends (LF or CRLF) of the file are kept."
    ),
    parameters=schema(
        {
            "path": {"type": "string", "minLength": 1, "description": "Path relative to the workspace."},
            "old_text": {"type": "string", "minLength": 1, "description": "The text to replace, without line numbers."},
            "new_text": {"type": "string", "description": "What to put in its place; empty deletes it."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence. Default false."},
            "expected_hash": HASH_RULE,
        },
        ("path", "old_text", "new_text"),
    ),
    tool_class="idempotent",
)


def rewrite(path: str, args: Arguments, before: bytes | None) -> Draft:
    """The content after the edit.

    Raises:
        Refused: there is no file, no match, or more than one without `replace_all`.
    """
    if before is None:
        raise Refused(f"there is no file {path}; write_file creates one, list_files shows what there is")
    old, new = args["old_text"].encode(), args["new_text"].encode()
    if b"\r\n" in before and before.count(b"\r\n") == before.count(b"\n"):
        # A model writes LF; in a file that has CRLF throughout, its lines mean CRLF.
        old, new = _crlf(old), _crlf(new)
    if old == new:
        raise Refused("old_text and new_text are the same, so there is nothing to change")
    places = _places(before, old)
    if not places:
        raise Refused(f"old_text does not occur in {path}. {_nearest(before, old)}")
    if len(places) > 1 and not args.get("replace_all"):
        raise Refused(
            f"old_text occurs {len(places)} times in {path}, at lines {_listed(places)}; "
            "name more of the text around the one you mean, or set replace_all"
        )
    what = "1 occurrence" if len(places) == 1 else f"{len(places)} occurrences"
    line = f"line{'s' if len(places) > 1 else ''} {_listed(places)}"
    return Draft(before.replace(old, new), f"edited {path}: replaced {what} at {line}")


def _crlf(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _places(data: bytes, part: bytes) -> list[int]:
    """The line numbers at which the part begins, overlaps not counted."""
    found: list[int] = []
    start, line, counted = data.find(part), 1, 0
    while start >= 0:
        line += data.count(b"\n", counted, start)
        counted = start
        found.append(line)
        start = data.find(part, start + len(part))
    return found


def _listed(places: list[int]) -> str:
    more = f" and {len(places) - _SHOWN_LINES} more" if len(places) > _SHOWN_LINES else ""
    return ", ".join(map(str, places[:_SHOWN_LINES])) + more


def _nearest(data: bytes, part: bytes) -> str:
    """Where the text stands with other white space, or where its longest line stands."""
    words = part.split()
    if not words:
        return "It is white space only"
    loose = re.search(rb"\s+".join(map(re.escape, words)), data)
    if loose is not None:
        first = data.count(b"\n", 0, loose.start()) + 1
        last = first + data.count(b"\n", loose.start(), loose.end())
        text = preview(decode(loose.group()), _SHOWN_BYTES)
        return f"It does with other white space at lines {first}-{last}: {text!r}. Repeat the edit with that text"
    longest = max((line.strip() for line in part.splitlines()), key=len)
    places = _places(data, longest)
    if places:
        return (
            f"Its line {preview(decode(longest), _SHOWN_BYTES)!r} does, at {_listed(places)}: read the file there again"
        )
    return "None of its lines does either: read the file again"


async def _run(site: Site, args: Arguments) -> Result:
    return await change(site, args, rewrite)


TOOL = Tool(SPEC, _run)
