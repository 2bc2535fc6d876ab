"""Artifacts are read by content hash and verified on the way: what is printed is what was stored (spec EVT-6)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salience.cli.connection import connected, recorded
from salience.cli.options import Json, SessionId
from salience.cli.output import clean, json_out, say, short, table, tell
from salience.errors import SalienceError, UsageError
from salience.model.text import decode, mend

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.model.artifact import Artifact

BINARY_PROBE = 8_192

group = typer.Typer(add_completion=False, help="List, show and search what a session produced.")
Kind = Annotated[str | None, typer.Option("--kind", help="Only artifacts of this kind.", show_default=False)]


@group.command("list")
def list_(session: SessionId, kind: Kind = None, json_: Json = False) -> None:
    """List the artifacts of a session, in order of appearance."""

    async def work(client: Salience) -> Sequence[Artifact]:
        return await _artifacts(client, session, kind)

    found = connected(work)
    if json_:
        json_out([artifact.plain() for artifact in found])
    elif not found:
        tell("no artifacts")
    else:
        rows = [(a.artifact_id, a.kind, a.content_hash[:16], a.size_bytes or None, a.summary) for a in found]
        table(("ARTIFACT", "KIND", "HASH", "BYTES", "SUMMARY"), rows, right=(3,))


@group.command("show")
def show(
    ref: Annotated[str, typer.Argument(metavar="REF", help="An artifact's id, its hash or its blob: URI.")],
    session: Annotated[
        str | None,
        typer.Option("--session", help="The session of an id or a shortened hash.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the bytes to a file.", show_default=False)] = None,
    json_: Json = False,
) -> None:
    """Print an artifact: its bytes as they are in a pipe, as text on a terminal."""
    ref, name = mend(ref), mend(ref).removeprefix("blob:")

    async def work(client: Salience) -> tuple[str, bytes, dict[str, Any]]:
        about: dict[str, Any] = {}
        if session is not None:
            await recorded(client, session)
            if not re.fullmatch("[0-9a-f]{64}", name):
                artifact = await client.record.artifact(session, ref)
                about = artifact.plain()
                return artifact.content_hash, await client.blobs.get(artifact.content_hash), about
        elif not re.fullmatch("[0-9a-f]{64}", name):
            raise UsageError(f"{ref!r} is no content hash", mend="give --session SESSION to name an artifact by its id")
        return name, await client.blobs.get(name), about

    digest, data, about = connected(work)
    if out is not None:
        try:
            out.write_bytes(data)
        except OSError as error:
            raise SalienceError(f"{out} cannot be written: {error.strerror}", mend="give another --out") from error
    if json_:
        body = {"path": str(out)} if out else {"text": decode(data)}
        json_out({**about, "content_hash": digest, "size_bytes": len(data), **body})
    elif out is not None:
        say(f"{len(data):,} bytes of {digest[:16]} in {out}")
    elif sys.stdout.isatty():
        say(clean(decode(data)) if not _is_binary(data) else f"{len(data):,} bytes that are no text — --out FILE")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@group.command("grep")
def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression.")],
    session: SessionId,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore case.")] = False,
    kind: Kind = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most lines to print.")] = 200,
    json_: Json = False,
) -> None:
    """Search the artifacts of a session line by line; exits with 1 when nothing matches."""
    try:
        wanted = re.compile(mend(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}") from None

    async def work(client: Salience) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        seen: set[str] = set()
        for artifact in await _artifacts(client, session, kind):
            if artifact.content_hash in seen:
                continue
            seen.add(artifact.content_hash)
            data = await client.blobs.get(artifact.content_hash)
            if _is_binary(data):
                continue
            for number, line in enumerate(decode(data).splitlines(), 1):
                if wanted.search(line):
                    found.append({"artifact_id": artifact.artifact_id, "line": number, "text": line})
                    if len(found) == limit:
                        return found
        return found

    matches = connected(work)
    if json_:
        json_out(matches)
    else:
        for match in matches:
            say(f"{match['artifact_id']}:{match['line']}: {short(match['text'], 300)}")
        if len(matches) == limit:
            tell(f"stopped after {limit} lines (--limit)")
    raise typer.Exit(0 if matches else 1)


async def _artifacts(client: Salience, session_id: str, kind: str | None) -> Sequence[Artifact]:
    await recorded(client, session_id)
    found = await client.artifacts(session_id)
    if kind is None:
        return found
    from typing import get_args

    from salience.model.artifact import ArtifactKind

    if kind not in get_args(ArtifactKind):
        raise UsageError(f"no artifact kind {kind!r}", mend=f"one of {', '.join(get_args(ArtifactKind))}")
    return [artifact for artifact in found if artifact.kind == kind]


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:BINARY_PROBE]
