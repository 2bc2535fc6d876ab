"""A change of one file is idempotent: what it will make true is recorded before it is done, and a retry ends the same.

The intent holds the hashes before and after, and both contents are blobs by then. A retry therefore computes the same
change from the same content, finds the file as it was (and applies it), as it will be (and is done), or as neither (and
says so). Its outcome is the one an undisturbed run has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from activities.tools.read_file import HASH_DIGITS
from activities.tools.result import Arguments, Refused, Result, Site
from salience.model.canonical import digest
from salience.model.tool import FileEffect
from salience.workspace.diff import Pair, unified
from salience.workspace.files import read, replace
from salience.workspace.paths import Workspace, locate, shown

MAX_FILE_BYTES = 10 * 1024 * 1024

HASH_RULE = {
    "type": "string",
    "pattern": "^[0-9a-f]{8,64}$",
    "description": "sha256 prefix of the content you saw; the change is refused when the file is another by now.",
}


@dataclass(frozen=True, slots=True)
class Draft:
    """The content a change aims at, and what to say of it."""

    after: bytes
    said: str


Rewrite = Callable[[str, Arguments, bytes | None], Draft]
"""From the path, the arguments and the content — None when there is no file — to the draft. Pure; raises `Refused`."""


async def change(site: Site, args: Arguments, rewrite: Rewrite) -> Result:
    """Apply a rewrite to the file that `args["path"]` names, at most once.

    Raises:
        Refused: the session is read-only, the precondition fails, or the rewrite does not apply.
    """
    if site.config.permission_config.sandbox_mode == "read_only":
        raise Refused("this session may not change files: its sandbox_mode is read_only", kind="denied")
    path, found = await asyncio.to_thread(look, site.workspace, args["path"])
    before = found if site.intent is None else await _before(site)
    if site.intent is None:
        _expect(path, args.get("expected_hash"), before)
    draft = rewrite(path, args, before)
    if len(draft.after) > MAX_FILE_BYTES:
        raise Refused(f"{path} would have {len(draft.after)} bytes; {MAX_FILE_BYTES} is the most")
    hashes = {"path": path, "before": _hash(before), "after": digest(draft.after)}
    if site.intent is None:
        if before is not None:
            await site.blobs.put(before)
        await site.blobs.put(draft.after)
        await site.intend(hashes)
    await asyncio.to_thread(_apply, site, args["path"], hashes, draft.after)
    return _result(path, before, draft)


def describe(intent: dict[str, str | None], found: bytes | None) -> str:
    """What a recorded intent came to, from the content found afterwards: evidence for a call whose worker died."""
    now = _hash(found)
    if now == intent["after"]:
        return f"{intent['path']} has the content the call was to give it: it was applied."
    if now == intent["before"]:
        return f"{intent['path']} is as it was before the call: it was not applied."
    return f"{intent['path']} is neither as it was before the call nor as the call was to leave it: read it again."


def look(workspace: Workspace, named: str) -> tuple[str, bytes | None]:
    """The real path of a file, and its content or None. Blocks."""
    with locate(workspace, named) as spot:
        content = read(spot, limit=MAX_FILE_BYTES)
        return shown(spot.path), content.data if content else None


async def _before(site: Site) -> bytes | None:
    assert site.intent is not None
    ref = site.intent["before"]
    return await site.blobs.get(ref) if ref is not None else None


def _apply(site: Site, named: str, hashes: dict[str, str | None], after: bytes) -> None:
    with locate(site.workspace, named) as spot:
        content = read(spot, limit=MAX_FILE_BYTES)
        now = content.sha256 if content else None
        if shown(spot.path) != hashes["path"] or now not in (hashes["before"], hashes["after"]):
            raise Refused(f"{hashes['path']} was changed by someone else while this call ran; read it again")
        if now != hashes["after"]:
            replace(spot, after, tag=site.tag)


def _expect(path: str, expected: str | None, before: bytes | None) -> None:
    if expected is None:
        return
    if before is None:
        raise Refused(f"there is no file {path}, so expected_hash cannot hold; leave it out to create the file")
    if not digest(before).startswith(expected):
        raise Refused(
            f"{path} is not the content you named: its sha256 is {digest(before)[:HASH_DIGITS]}, not {expected}. "
            "Read it again, then repeat the change"
        )


def _result(path: str, before: bytes | None, draft: Draft) -> Result:
    if before == draft.after:
        return Result(f"{path} already has this content; nothing was changed\n".encode())
    effect = FileEffect(
        op="created" if before is None else "modified",
        path=path,
        before_hash=_hash(before),
        after_hash=digest(draft.after),
        size_bytes=len(draft.after),
    )
    diff = unified([Pair(path, before, draft.after)])
    said = f"{draft.said} (sha256 {digest(draft.after)[:HASH_DIGITS]})\n"
    # The content of a new file is what the model has just written; a diff would only repeat it.
    return Result((said + (diff.text if before is not None else "")).encode(), effects=(effect,), diff=diff)


def _hash(data: bytes | None) -> str | None:
    return digest(data) if data is not None else None
