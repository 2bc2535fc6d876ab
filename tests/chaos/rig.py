"""A rig is a stack whose every part can be harmed and mended: workers behind lines, servers with their processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from salience.local import Stack
from salience.local.process import working_in
from salience.settings import Settings
from tests.chaos.keeper import Keeper
from tests.chaos.proxy import Line, line_to
from tests.chaos.toll import Toll
from tests.s3_server import S3Server

DELAY_S = 0.1
CUT_EVERY_S = 0.4

Harm = Callable[["Rig", float], Awaitable[None]]
"""Harms a part for so many seconds, and mends it."""


@dataclass
class Rig:
    """The servers of a stack, the lines that lead to them, and the workers at the end of the lines.

    Attributes:
        moments: when each harm was over: for a death, when it happened.
    """

    stack: Stack
    queue: str
    blobs: Path
    s3: S3Server | None
    lines: dict[str, Line]
    keepers: list[Keeper] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)

    async def harm(self, part: str, fault: str, seconds: float, toll: Toll) -> None:
        """Do something to a part, and end it after a while; returns when the part is whole again."""
        began = time.time()
        await FAULTS[part, fault](self, seconds)
        toll.faults[f"{part} {fault}"] += 1
        self.moments.append(began if fault == "killed" else time.time())


@asynccontextmanager
async def rigged(
    stack: Stack, settings: Settings, queue: str, folder: Path, *, workers: int = 1, s3: S3Server | None = None
) -> AsyncIterator[Rig]:
    """A rig on a queue of its own; its lines harm nobody else; what is done to servers and blobs does.

    Args:
        settings: resolved settings of the stack.
        folder: where the workers' logs lie.
        s3: keeps the blobs, where it is given.
    """
    settings.blobs.mkdir(parents=True, exist_ok=True)
    dsn = urlsplit(settings.postgres_dsn)
    socket_dir = parse_qs(dsn.query)["host"][0]
    async with AsyncExitStack() as open_now:
        temporal = await open_now.enter_async_context(line_to(settings.temporal_address))
        postgres = await open_now.enter_async_context(line_to(f"{socket_dir}/.s.PGSQL.5432"))
        through = f"{dsn.scheme}://{dsn.username}:{dsn.password}@{postgres.address}{dsn.path}"
        env = {
            "SALIENCE_TEMPORAL_ADDRESS": temporal.address,
            "SALIENCE_POSTGRES_DSN": through,
        }
        rig = Rig(stack, queue, settings.blobs, s3, {"temporal": temporal, "postgres": postgres})
        if s3 is not None:
            rig.lines["s3"] = await open_now.enter_async_context(line_to(s3.endpoint))
            env |= {**s3.environment(), "SALIENCE_S3_ENDPOINT": rig.lines["s3"].address}
        for number in range(workers):
            keeper = Keeper(stack.home.root, queue, folder / f"worker-{number}", env=env)
            rig.keepers.append(await open_now.enter_async_context(keeper))
        yield rig


# --- workers ----------------------------------------------------------------------------------------------------------


async def _kill_worker(rig: Rig, seconds: float) -> None:
    del seconds
    rig.keepers[0].kill()
    rig.keepers.append(rig.keepers.pop(0))  # the next one it is the other's turn


async def _freeze_worker(rig: Rig, seconds: float) -> None:
    keeper = rig.keepers[0]
    keeper.freeze()
    await asyncio.sleep(seconds)
    keeper.thaw()


# --- servers ----------------------------------------------------------------------------------------------------------


def _killed(*parts: str) -> Harm:
    async def kill(rig: Rig, seconds: float) -> None:
        del seconds
        if "worker" in parts:
            for keeper in rig.keepers:
                keeper.kill()
        gone = [(part, rig.stack.kill(part)) for part in parts if part in ("temporal", "postgres")]
        await asyncio.gather(*(asyncio.to_thread(rig.stack.wait_restarted, part, pid, 60) for part, pid in gone))

    return kill


def _processes(rig: Rig, part: str) -> list[int]:
    if part == "postgres":
        return working_in(Path(rig.stack.info.pg_data_dir), "postgres")
    return [getattr(rig.stack.info, part).pid]


def _frozen(part: str) -> Harm:
    async def freeze(rig: Rig, seconds: float) -> None:
        stopped = _processes(rig, part)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return freeze


# --- lines ------------------------------------------------------------------------------------------------------------


def _refusing(part: str) -> Harm:
    async def refuse(rig: Rig, seconds: float) -> None:
        await rig.lines[part].close()
        try:
            await asyncio.sleep(seconds)
        finally:
            await rig.lines[part].open()

    return refuse


def _silent(part: str) -> Harm:
    async def hold(rig: Rig, seconds: float) -> None:
        rig.lines[part].hold()
        try:
            await asyncio.sleep(seconds)
        finally:
            rig.lines[part].release()

    return hold


def _lost(part: str) -> Harm:
    async def lose(rig: Rig, seconds: float) -> None:
        rig.lines[part].hold()
        try:
            await asyncio.sleep(seconds)
        finally:
            await rig.lines[part].cut()
            rig.lines[part].release()

    return lose


def _slow(part: str) -> Harm:
    async def delay(rig: Rig, seconds: float) -> None:
        rig.lines[part].delay_s = DELAY_S
        try:
            await asyncio.sleep(seconds)
        finally:
            rig.lines[part].delay_s = 0.0

    return delay


def _cut(part: str) -> Harm:
    async def cut(rig: Rig, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await rig.lines[part].cut()
            await asyncio.sleep(CUT_EVERY_S)

    return cut


# --- the blob server --------------------------------------------------------------------------------------------------


async def _kill_s3(rig: Rig, seconds: float) -> None:
    assert rig.s3 is not None
    rig.s3.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(rig.s3.start)


async def _freeze_s3(rig: Rig, seconds: float) -> None:
    assert rig.s3 is not None
    rig.s3.freeze()
    try:
        await asyncio.sleep(seconds)
    finally:
        rig.s3.thaw()


# --- the folder of the blobs ------------------------------------------------------------------------------------------


async def _missing(rig: Rig, seconds: float) -> None:
    away = rig.blobs.with_name("blobs.away")
    rig.blobs.rename(away)
    try:
        await asyncio.sleep(seconds)
    finally:
        away.rename(rig.blobs)


async def _unwritable(rig: Rig, seconds: float) -> None:
    # A mode would not stop root: a file in the place of the folder stops everybody.
    away = rig.blobs.with_name("blobs.away")
    rig.blobs.rename(away)
    rig.blobs.touch()
    try:
        await asyncio.sleep(seconds)
    finally:
        rig.blobs.unlink()
        away.rename(rig.blobs)


LINES = ("temporal", "postgres", "s3")

FAULTS: dict[tuple[str, str], Harm] = {
    ("worker", "killed"): _kill_worker,
    ("worker", "frozen"): _freeze_worker,
    ("temporal", "killed"): _killed("temporal"),
    ("postgres", "killed"): _killed("postgres"),
    ("everything", "killed"): _killed("temporal", "postgres", "worker"),
    ("temporal", "frozen"): _frozen("temporal"),
    ("postgres", "frozen"): _frozen("postgres"),
    ("s3", "killed"): _kill_s3,
    ("s3", "frozen"): _freeze_s3,
    **{(part, "refusing"): _refusing(part) for part in LINES},
    **{(part, "silent"): _silent(part) for part in LINES},
    **{(part, "lost"): _lost(part) for part in LINES},
    **{(part, "slow"): _slow(part) for part in LINES},
    **{(part, "cut"): _cut(part) for part in LINES},
    ("blobs", "missing"): _missing,
    ("blobs", "unwritable"): _unwritable,
}
"""What can be done to which part.

Silent lines pass nothing and then all of it; lost ones pass nothing and then reset; slow ones delay each piece; cut ones
are reset again and again; refusing ports have nobody behind them.
"""
