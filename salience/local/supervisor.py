"""The supervisor holds the home's lock for as long as it runs: one stack a home, whose parts live and end with it.

It publishes where its parts answer, restarts each that dies, and on its way out removes every process, socket and lock;
what it cannot remove because it was killed itself, the next start does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from salience.errors import SalienceError
from salience.local.home import Home
from salience.local.info import PostgresInfo, RemotePart, StackInfo, TemporalInfo, WorkerInfo, publish, recorded
from salience.local.lock import HomeLock
from salience.local.parts import Part
from salience.local.placement import Placement, locate, settle
from salience.local.postgres import Postgres
from salience.local.process import ProcessId, rotate
from salience.local.roles import OWNER, RUNTIME, SUPERUSER, prepare_database
from salience.local.temporal import Temporal
from salience.local.work import Work

Mode = Literal["detached", "foreground", "inside"]
Tell = Callable[[str, float], None]
"""Called with a step's name and how long it took in seconds."""

QUICK_S = 5.0
"""A part that lived for less than this died quickly; only then does the next restart wait."""

PAUSES_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before each restart of a part that keeps dying quickly. The first is immediate: sessions wait for it."""

LEFTOVER_GRACE_S = 10.0


class AlreadyHeld(SalienceError):
    """Another supervisor runs this home: use its stack, or `salience down`."""


def migrate(owner_dsn: str) -> object:
    """Bring the schema to this release."""
    from salience.store.migrations import migrate as apply

    return apply(owner_dsn)


class Supervisor:
    """One run of a stack.

    Args:
        home: whose stack.
        worker: whether a worker belongs to it.
        mode: who started it.
        prepare: called with the owner's libpq URI once the database exists, in order.
        tell: told of each step that is done.
        temporal_args: more arguments for the Temporal server.
        worker_command: another program than the worker, in tests.
        remote: the parts that the settings name elsewhere, which are not started here.
    """

    def __init__(
        self,
        home: Home,
        *,
        worker: bool = True,
        mode: Mode = "inside",
        prepare: Sequence[Callable[[str], object]] = (migrate,),
        tell: Tell = lambda step, seconds: None,
        temporal_args: Sequence[str] = (),
        worker_command: tuple[str, ...] = (),
        remote: Sequence[RemotePart] = (),
    ) -> None:
        self.home = home
        self._mode: Mode = mode
        self._prepare = tuple(prepare)
        self._tell = tell
        self._remote = tuple(remote)
        self._temporal = None if "temporal" in remote else Temporal(home, temporal_args)
        self._work = Work(home, worker_command) if worker else None
        self._postgres: Postgres | None = None
        self._restarts: dict[str, int] = {}
        self._state: Literal["starting", "ready"] = "starting"
        self._began = time.time()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run the stack until cancelled.

        Args:
            ready: called once, when every part has answered.

        Raises:
            AlreadyHeld: another supervisor has this home.
            SalienceError: a part did not come up; everything that did is ended again.
        """
        self.home.make()
        lock = HomeLock(self.home.lock_file)
        if not lock.acquire():
            raise AlreadyHeld(f"a stack already runs under {self.home.root}", mend="salience down")
        try:
            rotate(self.home.logs / "supervisor.log")
            await end_leftovers(self.home)
            place = None
            if "postgres" not in self._remote:
                place = locate(self.home)
                settle(self.home, place)
                self._postgres = Postgres(self.home, place)
            self._publish(place)
            await self._start(place)
            self._state = "ready"
            self._publish(place)
            self._note("ready")
            ready()
            async with asyncio.TaskGroup() as group:
                for part in self._parts():
                    group.create_task(self._keep(part, place))
        finally:
            await asyncio.shield(self._end(lock))

    def _parts(self) -> list[Part]:
        return [part for part in (self._postgres, self._temporal, self._work) if part is not None]

    async def _start(self, place: Placement | None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                if self._temporal:
                    group.create_task(self._step("Temporal", self._temporal.start()))
                if self._postgres:
                    group.create_task(self._step("Postgres", self._start_postgres(self._postgres)))
        except* SalienceError as several:
            raise _first(several) from several
        self._publish(place)
        if self._work:
            await self._step("worker", self._work.start())

    async def _start_postgres(self, postgres: Postgres) -> None:
        await postgres.create()
        await postgres.start()
        await prepare_database(postgres.dsn(SUPERUSER, "postgres"), self.home.passwords())
        for prepare in self._prepare:
            await asyncio.to_thread(prepare, postgres.dsn(OWNER))

    async def _step(self, name: str, doing: Awaitable[None]) -> None:
        began = time.monotonic()
        await doing
        seconds = time.monotonic() - began
        self._note(f"{name} answers after {seconds:.2f} s")
        self._tell(name, seconds)

    async def _keep(self, part: Part, place: Placement | None) -> None:
        """Restart a part whenever it dies, for as long as the supervisor runs."""
        quick = 0
        while True:
            started = time.monotonic()
            self._note(f"{part.name} {await part.ended()}; restarting it")
            address = self._temporal.address if self._temporal else ""
            while True:
                quick = quick + 1 if time.monotonic() - started < QUICK_S else 0
                await asyncio.sleep(PAUSES_S[min(quick, len(PAUSES_S) - 1)])
                started = time.monotonic()
                try:
                    await part.start()
                    break
                except SalienceError as error:
                    # Not the end of the stack: what failed (a full disk, a port) may pass, and `doctor` names it.
                    self._note(error.line())
                    await part.stop()
            self._restarts[part.name] = self._restarts.get(part.name, 0) + 1
            try:
                self._publish(place)
            except SalienceError as error:
                self._note(error.line())  # a full disk; the addresses in the old file still hold
            self._note(f"{part.name} answers again after {time.monotonic() - started:.2f} s")
            if self._temporal and self._temporal.address != address and self._work and self._work.process:
                self._work.process.kill()  # it knows the old address only

    async def _end(self, lock: HomeLock) -> None:
        if self._work:
            await self._work.stop()
        # The servers outlive the worker, which may want to finish what it does.
        servers = [part for part in (self._postgres, self._temporal) if part is not None]
        await asyncio.gather(*(part.stop() for part in servers), return_exceptions=True)
        if self._postgres:
            self._postgres.remove_socket_dir()
        self.home.stack_file.unlink(missing_ok=True)
        self._note("ended")
        lock.release()

    def _publish(self, place: Placement | None) -> None:
        me = ProcessId.of(os.getpid())
        postgres, temporal, work = self._postgres, self._temporal, self._work
        publish(
            self.home,
            StackInfo(
                home=str(self.home.root),
                state=self._state,
                mode=self._mode,
                supervisor_pid=os.getpid(),
                supervisor_started=me.started if me else "",
                temporal=TemporalInfo(address=temporal.address, **self._part(temporal))
                if temporal and temporal.id
                else None,
                postgres=PostgresInfo(
                    owner_dsn=postgres.dsn(OWNER),
                    runtime_dsn=postgres.dsn(RUNTIME),
                    superuser_dsn=postgres.dsn(SUPERUSER),
                    **self._part(postgres),
                )
                if postgres and postgres.id
                else None,
                worker=WorkerInfo(**self._part(work)) if work and work.id else None,
                started_at=self._began,
                pg_data_dir=str(place.data) if place else "",
                socket_dir=str(place.socket_dir) if place else "",
                remote=self._remote,
            ),
        )

    def _part(self, part: Part) -> dict[str, Any]:
        started = part.id.started if part.id else ""
        return {"pid": part.pid, "started": started, "restarts": self._restarts.get(part.name, 0)}

    def _note(self, text: str) -> None:
        # A full disk must not end the stack over its own log.
        with suppress(OSError), (self.home.logs / "supervisor.log").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")


async def end_leftovers(home: Home) -> None:
    """End what a killed supervisor left behind; only for the holder of the home's lock.

    Its parts die with it, so this mostly finds nothing; Postgres looks after its own at its start.
    """
    if info := recorded(home):
        for process in info.processes():
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while any(process.alive() for process in info.processes()):
            if time.monotonic() > deadline:
                for process in info.processes():
                    process.signal(signal.SIGKILL)
            await asyncio.sleep(0.02)
        home.stack_file.unlink(missing_ok=True)
    home.worker_ready.unlink(missing_ok=True)


def _first(several: BaseExceptionGroup[SalienceError]) -> SalienceError:
    found: BaseException = several
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, SalienceError)
    return found
