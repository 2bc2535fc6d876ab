"""The Postgres of one home: reached through a Unix socket only, with passwords, never as the superuser by the runtime.

The supervisor owns the postmaster as its child. `pg_ctl` would make it an orphan, and the stale lock files that a
killed postmaster leaves behind can only be judged safely by whoever holds the home's lock.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psycopg

from salience.errors import BackendUnavailable, SalienceError
from salience.local.home import Home
from salience.local.parts import Part
from salience.local.placement import SOCKET_NAME, Placement, settle
from salience.local.process import Account, end, last_line, spawn, working_in
from salience.local.roles import DATABASE, OWNER, RUNTIME, SUPERUSER

MAJOR = "18"

OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "jit": "off",  # compiling a plan costs more than any query here takes
    "io_method": "sync",  # three processes fewer; the data fit into memory
    "log_min_messages": "warning",
    "logging_collector": "off",
}
"""Given on the command line and not in postgresql.conf, so that a copied home carries no path and no setting along."""


class Postgres(Part):
    """The server.

    Args:
        home: whose data it serves.
        place: where its data, socket and programs lie.
    """

    name = "Postgres"

    def __init__(self, home: Home, place: Placement) -> None:
        super().__init__(home.logs / "postgres.log")
        self._home = home
        self.place = place

    def dsn(self, role: str, database: str = DATABASE) -> str:
        """The libpq URI of a role."""
        passwords = self._home.passwords()
        password = {SUPERUSER: passwords.superuser, OWNER: passwords.owner, RUNTIME: passwords.runtime}[role]
        host = quote(str(self.place.socket_dir), safe="")
        return f"postgresql://{role}:{quote(password, safe='')}@/{database}?host={host}&port=5432"

    def argv(self) -> list[str]:
        """The command that runs the server."""
        options = [text for name, value in OPTIONS.items() for text in ("-c", f"{name}={value}")]
        program = self.place.programs / "bin" / "postgres"
        return [str(program), "-D", str(self.place.data), "-k", str(self.place.socket_dir), *options]

    async def create(self) -> bool:
        """Make the data folder unless it exists; True when it was made.

        Raises:
            SalienceError: the data are of another major version, or cannot be made.
        """
        if (self.place.data / "PG_VERSION").exists():
            found = (self.place.data / "PG_VERSION").read_text(encoding="utf-8").strip()
            if found != MAJOR:
                raise SalienceError(
                    f"{self.place.data} is of Postgres {found}, this release brings {MAJOR}",
                    mend=f"dump it with Postgres {found} and restore it into a new home",
                )
            return False
        # Made under another name: a half-made folder must never look like a database.
        half = self.place.folder / "data.new"
        shutil.rmtree(half, ignore_errors=True)
        password = self.place.folder / "initdb.pw"
        _write_for(password, self._home.passwords().superuser, self.place.account)
        try:
            process = await spawn(
                [
                    *(self.place.programs / "bin" / "initdb", "-D", half, "-U", SUPERUSER, f"--pwfile={password}"),
                    *("--auth-local=scram-sha-256", "--auth-host=scram-sha-256", "--no-instructions"),
                    # The same sorting on every machine, whatever locales it has.
                    *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                ],
                env=_environment(),
                log=self.log,
                account=self.place.account,
            )
            try:
                code = await process.wait()
            finally:
                await end(process, [])
        except OSError as error:
            raise BackendUnavailable(f"initdb cannot be started: {error}", mend="salience doctor") from error
        finally:
            password.unlink(missing_ok=True)
        if code:
            shutil.rmtree(half, ignore_errors=True)
            raise BackendUnavailable(f"initdb failed: {last_line(self.log)}", mend=f"see {self.log}")
        half.rename(self.place.data)
        return True

    async def spawn(self) -> asyncio.subprocess.Process:
        await self._clear()
        settle(self._home, self.place)  # again: a cleaner of /tmp may have taken the socket's folder
        return await spawn(
            self.argv(),
            env=_environment(),
            log=self.log,
            account=self.place.account,
            death=signal.SIGQUIT,  # its "stop at once": the children end too and the lock files go
        )

    async def healthy(self) -> bool:
        if not (self.place.socket_dir / SOCKET_NAME).exists():
            return False
        try:
            dsn = self.dsn(SUPERUSER, "postgres")
            async with asyncio.timeout(5), await psycopg.AsyncConnection.connect(dsn, connect_timeout=5) as connection:
                await connection.execute("SELECT 1")
            return True
        except (psycopg.Error, OSError, TimeoutError):
            return False

    async def stop(self) -> None:
        if self.process:
            await end(self.process, [(signal.SIGINT, 15), (signal.SIGQUIT, 5)])
        await self._clear()

    def remove_socket_dir(self) -> None:
        """Remove a socket folder outside the home, which is of no use once the stack has ended."""
        if self.place.socket_dir != self.place.folder:
            shutil.rmtree(self.place.socket_dir, ignore_errors=True)

    async def _clear(self) -> None:
        """End what an earlier postmaster left behind, and its lock files, which name a pid that may live again.

        Safe because we hold the home's lock and no Postgres works in this data folder any more.
        """
        begun = time.monotonic()
        while pids := working_in(self.place.data, "postgres"):
            waited = time.monotonic() - begun
            if waited > 0.5:  # until then they may be noticing by themselves that their postmaster is gone
                for pid in pids:
                    _signal(pid, signal.SIGQUIT if waited < 5 else signal.SIGKILL)
            await asyncio.sleep(0.05)
        for name in ("postmaster.pid", "postmaster.opts"):
            (self.place.data / name).unlink(missing_ok=True)
        for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            (self.place.socket_dir / name).unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    # Nothing of the user's: PG* variables would change the server, and keys are none of its business.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _write_for(path: Path, text: str, account: Account | None) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    if account:
        os.chown(path, account.uid, account.gid)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
