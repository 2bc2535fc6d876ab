"""What a running stack tells others: one private file in the home, trusted only while its supervisor lives."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from salience.errors import StackNotRunning
from salience.local.home import Home, write_private
from salience.local.process import ProcessId

RemotePart = Literal["temporal", "postgres"]


class TemporalInfo(BaseModel):
    """The Temporal server: host:port of its frontend, its process, and how often it was restarted."""

    model_config = ConfigDict(frozen=True)

    address: str
    pid: int
    started: str
    restarts: int = 0


class PostgresInfo(BaseModel):
    """Postgres: its postmaster and the libpq URI of each role."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str
    restarts: int = 0
    owner_dsn: str
    runtime_dsn: str
    superuser_dsn: str


class WorkerInfo(BaseModel):
    """The worker."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str
    restarts: int = 0


class StackInfo(BaseModel):
    """One running stack.

    Attributes:
        home: whose it is; a copied file therefore speaks for nobody.
        state: `starting` until every part has answered once.
        mode: `detached` (`up`), `foreground` (`up --foreground`) or `inside` (within a test's process).
        worker: None when it runs without one.
        started_at: seconds since the epoch.
        remote: which of `temporal` and `postgres` are not its own, because the settings name others.
    """

    model_config = ConfigDict(frozen=True)

    home: str
    state: Literal["starting", "ready"]
    mode: Literal["detached", "foreground", "inside"]
    supervisor_pid: int
    supervisor_started: str
    temporal: TemporalInfo | None
    postgres: PostgresInfo | None
    worker: WorkerInfo | None
    started_at: float
    pg_data_dir: str
    socket_dir: str
    remote: tuple[RemotePart, ...] = ()

    def processes(self) -> list[ProcessId]:
        """The processes of the parts."""
        parts = (self.temporal, self.postgres, self.worker)
        return [ProcessId(pid=part.pid, started=part.started) for part in parts if part is not None]

    def supervisor(self) -> ProcessId:
        """The process that watches the parts."""
        return ProcessId(pid=self.supervisor_pid, started=self.supervisor_started)

    def without_passwords(self) -> StackInfo:
        """For printing: URIs without their passwords."""
        if self.postgres is None:
            return self
        bare = {
            name: f"{scheme}://{rest.split(':', 1)[0]}@{rest.split('@', 1)[1]}"
            for name in ("owner_dsn", "runtime_dsn", "superuser_dsn")
            for scheme, rest in [getattr(self.postgres, name).split("://", 1)]
        }
        return self.model_copy(update={"postgres": self.postgres.model_copy(update=bare)})


def recorded(home: Home) -> StackInfo | None:
    """What the file says, whether or not it is still true."""
    try:
        found = StackInfo.model_validate_json(home.stack_file.read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.home == str(home.root) else None


def publish(home: Home, info: StackInfo) -> None:
    """Replace the file.

    Raises:
        SalienceError: the home cannot be written.
    """
    write_private(home.stack_file, info.model_dump_json(indent=1))


def running(home: Path) -> StackInfo | None:
    """The stack that runs under a home, None when there is none; it may still be starting."""
    found = recorded(Home(home))
    return found if found and found.supervisor().alive() else None


def ready(home: Path) -> StackInfo:
    """The stack that runs under a home.

    Raises:
        StackNotRunning: there is none, or it is still starting.
    """
    found = running(home)
    if found is None:
        raise StackNotRunning(f"no stack runs under {home}", mend="salience up")
    parts: dict[RemotePart, object] = {"temporal": found.temporal, "postgres": found.postgres}
    if any(part is None and name not in found.remote for name, part in parts.items()):
        raise StackNotRunning(f"the stack under {home} is still starting", mend="wait, or see `salience doctor`")
    return found


def owner_dsn(home: Path) -> str:
    """libpq URI of the role that owns the schema.

    Raises:
        StackNotRunning: no stack runs there.
    """
    return _postgres(home).owner_dsn


def superuser_dsn(home: Path) -> str:
    """libpq URI of the superuser, for tests and repairs only; nothing of Salience's runtime uses it (spec EVT-3).

    Raises:
        StackNotRunning: no stack runs there.
    """
    return _postgres(home).superuser_dsn


def _postgres(home: Path) -> PostgresInfo:
    found = ready(home).postgres
    if found is None:
        raise StackNotRunning(f"the stack under {home} has no Postgres of its own", mend="use SALIENCE_POSTGRES_DSN")
    return found
