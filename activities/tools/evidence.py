"""What a call did to the workspace is read off the workspace — a manifest before, one after (INV 4)."""

from __future__ import annotations

import asyncio

from activities.tools.result import Result
from salience.errors import NotFound
from salience.model.tool import FailureKind, FileEffect
from salience.store.blobs import BlobStore
from salience.workspace.diff import Diff, Pair, unified
from salience.workspace.manifest import EMPTY, Change, Entry, Manifest, changes, take
from salience.workspace.paths import Workspace, WorkspaceGone

MAX_DIFFED_FILES = 200
_LISTED = 100
_PARALLEL_PUTS = 8
_LETTERS = {"created": "A", "modified": "M", "deleted": "D", "read": "R"}

_LEAD: dict[str, str] = {
    "outcome_unknown": (
        "The worker died while this call ran, so it is not known whether it was done. It was not started again. "
        "Look at what changed before you decide whether to repeat it."
    ),
    "not_started": "This call was never started: it changed nothing and may be made again.",
}


async def snapshot(workspace: Workspace, blobs: BlobStore) -> Manifest:
    """The workspace as it is now, with the manifest and the text files new to it stored.

    Raises:
        WorkspaceGone: the root is not there.
    """
    taken = await asyncio.to_thread(take, workspace)
    gate = asyncio.Semaphore(_PARALLEL_PUTS)

    async def keep(data: bytes) -> None:
        async with gate:
            await blobs.put(data)

    encoded = await asyncio.to_thread(lambda: taken.manifest.encoded)
    await asyncio.gather(*map(keep, (*taken.contents.values(), encoded)))
    return taken.manifest


async def after(workspace: Workspace, blobs: BlobStore) -> Manifest:
    """The same after a call, which may have removed the workspace itself."""
    try:
        return await snapshot(workspace, blobs)
    except WorkspaceGone:
        return EMPTY


async def recorded(ref: str, blobs: BlobStore) -> Manifest:
    """A manifest that was stored before."""
    return await asyncio.to_thread(Manifest.decode, await blobs.get(ref))


async def declared(before: Manifest, now: Manifest, blobs: BlobStore) -> tuple[tuple[FileEffect, ...], Diff | None]:
    """What happened between two manifests: the effects, and the diff of the text files whose contents are kept."""
    found = await asyncio.to_thread(changes, before, now)
    if not found:
        return (), None
    pairs = [await _pair(change, blobs) for change in found[:MAX_DIFFED_FILES]]
    pairs += [Pair(change.path, None, None, "not shown: too many files changed") for change in found[MAX_DIFFED_FILES:]]
    return tuple(change.effect() for change in found), await asyncio.to_thread(unified, pairs)


def account(kind: FailureKind, effects: tuple[FileEffect, ...], diff: Diff | None, said: bytes) -> Result:
    """The result of a call whose end nobody saw: what it changed, what it had said, and nothing that is a guess.

    Args:
        kind: `outcome_unknown` or `not_started`.
        effects: what changed since it was started.
        diff: the same as text.
        said: its output so far, when that is known.
    """
    parts = [_LEAD[kind] + "\n"]
    if kind == "outcome_unknown":
        if effects:
            parts.append("Changed in the workspace since it was started:\n")
            parts += [f"{_LETTERS[effect.op]} {effect.path}\n" for effect in effects[:_LISTED]]
            if len(effects) > _LISTED:
                parts.append(f"and {len(effects) - _LISTED} more files\n")
        else:
            parts.append("No file of the workspace changed. Effects outside the workspace cannot be seen from here.\n")
        if diff and diff.text:
            parts.append(f"\n{diff.text}")
    output = "".join(parts).encode()
    if said:
        output += b"\nIts output so far:\n" + said
    return Result(output, ok=False, kind=kind, effects=effects, diff=diff)


async def _pair(change: Change, blobs: BlobStore) -> Pair:
    note = ""
    sides: list[bytes | None] = []
    for entry in (change.before, change.after):
        content, why = await _content(entry, blobs)
        sides.append(content)
        note = note or why
    if not note and change.before and change.after and sides[0] == sides[1]:
        note = f"mode {change.before.mode:o} to {change.after.mode:o}"
    return Pair(change.path, sides[0], sides[1], note)


async def _content(entry: Entry | None, blobs: BlobStore) -> tuple[bytes | None, str]:
    if entry is None:
        return None, ""
    if entry.kind != "file":
        return b"", f"{entry.kind}, not shown"
    if entry.sha256 is None:
        return b"", f"{entry.size} bytes, not shown"
    try:
        return await blobs.get(entry.sha256), ""
    except NotFound:
        return b"", f"binary or long, {entry.size} bytes"
