"""A session leaves as one file and comes back as the same session; what is amiss with a file is named by line (spec EVT-7)."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from salience.cli.connection import connected
from salience.cli.options import Json, SessionId
from salience.cli.output import json_out, say, short, tell, warn
from salience.errors import SalienceError, UsageError, VerificationFailed

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.model.export import Exported, Imported

FORMATS = ("salience",)
SHOWN_FAULTS = 20


def export(
    session: SessionId,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file; stdout by default.", show_default=False)
    ] = None,
    no_blobs: Annotated[
        bool, typer.Option("--no-blobs", help="Leave contents out: the file tells what happened, and no more.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write a session to a file that another Salience can go on with.

    The same log gives the same bytes. Ends with 4 when a content that the record names is gone or damaged.
    """
    if json_ and out is None:
        raise UsageError("--json tells what was written; stdout is the file itself", mend="give --out FILE")
    if out is None and sys.stdout.isatty():
        raise UsageError("an export is no reading for a terminal", mend="give --out FILE, or a pipe")

    async def work(client: Salience) -> Exported:
        written = client.export(session, blobs=not no_blobs)
        lines = written.lines()
        first = await anext(lines)  # a session that is not there must leave no file
        with _target(out) as file:
            file.write(first)
            async for line in lines:
                file.write(line)
        return written.outcome

    outcome = connected(work)
    if json_:
        json_out({**outcome.plain(), "path": str(out)})
    else:
        where = f" in {out}" if out is not None else ""
        tell(f"{outcome.events} events, {outcome.blobs} blobs, {outcome.size_bytes:,} bytes{where}")
    if outcome.sensitive:
        warn(f"{len(outcome.sensitive)} sensitive artifacts are named in it and left out: {_some(outcome.sensitive)}")
    if outcome.missing:
        raise VerificationFailed(
            f"{len(outcome.missing)} blobs are gone or damaged and not in the export: {_some(outcome.missing)}",
            mend=f"salience verify {session} names the events",
        )


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The exported file; `-` reads it from stdin.")],
    session: Annotated[
        str | None,
        typer.Option("--session", help="Id of the session to make; else the exported one's.", show_default=False),
    ] = None,
    cwd: Annotated[
        Path | None,
        typer.Option("--cwd", help="Folder it shall work in; else the one it worked in.", show_default=False),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="Format of the file; this release has `salience`.")
    ] = "salience",
    json_: Json = False,
) -> None:
    """Make a session of an exported file.

    Importing the same file again changes nothing. What is amiss with a file is named by line, and the rest is kept; the
    command then ends with 4.
    """
    if format_ not in FORMATS:
        raise UsageError(f"no format {short(format_, 40)!r}", mend=f"this release has {', '.join(FORMATS)}")
    folder = None
    if cwd is not None:
        from salience.cli.configuration import folder_of

        folder = Path(folder_of(cwd))

    async def work(client: Salience) -> Imported:
        with _source(file) as path:
            return await client.import_file(path, session_id=session, cwd=folder)

    found = connected(work)
    if json_:
        json_out(found)
    else:
        _tell(found)
    if found.faults:
        raise VerificationFailed(
            f"{file} is not as it was written: {len(found.faults)} faults, the first in line {found.faults[0].line}; "
            f"the rest is imported as {found.session_id}",
            mend="export it again where it came from, and import that with --session NEW",
        )


def _tell(found: Imported) -> None:
    match found.status:
        case "already_imported":
            say(f"{found.session_id} is imported already; nothing was changed")
        case "same_session":
            say(f"{found.session_id} is the session that the file was exported from; nothing was changed")
        case _:
            say(f"{found.session_id}: {found.events} events, {found.blobs} blobs imported")
    for fault in found.faults[:SHOWN_FAULTS]:
        tell(f"line {fault.line}: {fault.message}", "bad")
    if len(found.faults) > SHOWN_FAULTS:
        tell(f"… {len(found.faults) - SHOWN_FAULTS} more (--json)")
    if found.left_out:
        warn("the file was made without blobs: the session can be read, and a model cannot go on with it")
    elif found.omitted:
        warn(f"{len(found.omitted)} blobs are named in the file and not in it: {_some(found.omitted)}")
    if found.status != "imported":
        return
    # The file's maker chose all of this; whoever goes on with the session should have seen it.
    say(f"works in {found.cwd} with {short(found.model or 'no model', 100)}, {found.sandbox_mode or 'no sandbox mode'}")
    if found.sandbox_mode == "danger_full_access":
        warn(
            "its commands run without a sandbox when it goes on: go on with it only if you trust where the file is from"
        )
    if found.api_base is not None:
        warn(f"its words, and your key, go to {short(found.api_base, 100)} when it goes on")
    if found.cwd is not None and not Path(found.cwd).is_dir():
        warn(f"its folder {found.cwd} is not here; to go on with it, import it with --session NEW --cwd DIR")


def _some(digests: tuple[str, ...]) -> str:
    shown = ", ".join(digest[:16] for digest in digests[:5])
    return f"{shown}, …" if len(digests) > 5 else shown


@contextlib.contextmanager
def _target(out: Path | None) -> Iterator[BinaryIO]:
    """Where an export goes. A file appears under its name when it is complete, and a file that was there stays till then."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if out.exists() and not out.is_file():  # a pipe or a device cannot be replaced
            with out.open("wb") as file:
                yield file
            return
        fd, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name[:100]}-")
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
            os.replace(temporary, out)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SalienceError(f"{out} cannot be written: {error.strerror}", mend="give another --out") from error


@contextlib.contextmanager
def _source(file: Path) -> Iterator[Path]:
    """The file to import; stdin is put on disk, because it is read twice."""
    if str(file) != "-":
        yield file
        return
    with tempfile.NamedTemporaryFile(prefix="salience-import-") as spool:
        while data := sys.stdin.buffer.read(1024 * 1024):
            spool.write(data)
        spool.flush()
        yield Path(spool.name)
