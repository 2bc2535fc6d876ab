"""ripgrep runs without configuration, inside the workspace, in one order, and only while its lines are wanted."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from activities.tools.result import Refused, Site
from salience.model.text import decode
from salience.workspace.paths import SCRATCH_PREFIX, locate

TIMEOUT_S = 60.0
_LINE_LIMIT = 1024 * 1024
_FEED = 256 * 1024


async def lines(
    site: Site, options: list[str], *, path: str, glob: str | None, ignored: bool, limit: int
) -> tuple[list[str], bool]:
    """The first lines ripgrep says.

    Args:
        site: whose workspace is searched.
        options: what to do, as ripgrep takes it.
        path: where, as the model named it.
        glob: only files like this.
        ignored: also files that ignore files leave out.
        limit: most lines.

    Returns:
        The lines without their ends, and whether there were more.

    Raises:
        Refused: the pattern or glob is wrong, the path is not there, or it took too long.
    """
    place = await asyncio.to_thread(_place, site, path)
    argv = [
        _binary(), "--no-config", "--color=never", "--sort=path", "--hidden", "--no-messages", "--no-require-git",
        "--no-ignore-parent", "--no-ignore-global", *(["--no-ignore"] if ignored else []), *options,
        *([f"--glob={glob}"] if glob else []), "--glob=!.git", f"--glob=!{SCRATCH_PREFIX}*",
        *(f"--glob=!/{hidden}" for hidden in sorted(site.workspace.hidden)),
    ]  # fmt: skip
    found, more = await _said([*argv, "--", place], str(site.workspace.root), limit, None)
    return [line.removeprefix("./") for line in found], more


async def lines_of(data: bytes, options: list[str], *, limit: int) -> tuple[list[str], bool]:
    """The first lines ripgrep says of some bytes, taken as text; arguments, result and refusals as of `lines`."""
    argv = [_binary(), "--no-config", "--color=never", "--no-messages", "--text", *options, "-"]
    return await _said(argv, "/", limit, data)


async def _said(argv: list[str], cwd: str, limit: int, fed: bytes | None) -> tuple[list[str], bool]:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env={"LANG": "C.UTF-8"}, limit=_LINE_LIMIT,
        stdin=asyncio.subprocess.DEVNULL if fed is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_feed(process.stdin, fed)) if process.stdin and fed is not None else None
    complaint = asyncio.create_task(process.stderr.read())
    found: list[str] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) <= limit and (line := await process.stdout.readline()):
                found.append(decode(line).rstrip("\r\n"))
            if len(found) <= limit:
                code = await process.wait()
                if code == 2 and (said := decode(await complaint).strip()):
                    raise Refused(f"ripgrep refused: {said[:1000]}", kind="invalid_arguments")
    except TimeoutError:
        raise Refused(
            f"the search took longer than {TIMEOUT_S:.0f} s; narrow it with path or glob", kind="timed_out"
        ) from None
    finally:
        complaint.cancel()
        if feeding is not None:
            feeding.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        # A paused pipe would never be seen to end, and `wait` waits for that.
        await process.stdout.read()
        await process.wait()
    return found[:limit], len(found) > limit


async def _feed(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write as fast as it is read; who has found enough stops reading."""
    view = memoryview(data)
    with suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(data), _FEED):
            pipe.write(view[at : at + _FEED])
            await pipe.drain()
        pipe.close()


def _place(site: Site, path: str) -> str:
    with locate(site.workspace, path) as spot:
        if spot.status is None:
            raise Refused(f"there is nothing at {spot.path}")
        return "." if spot.path == "." else f"./{spot.path}"


def _binary() -> str:
    beside = Path(sys.executable).parent / "rg"
    found = str(beside) if beside.is_file() else shutil.which("rg")
    if found is None:
        raise Refused("ripgrep is not installed on this worker; use run_command with grep or find", kind="unavailable")
    return found
