"""A Postgres of one's own is brought to this release's schema by who has the owner's URI, and by nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from salience.client import Salience
from salience.errors import BackendUnavailable
from salience.local import Stack, superuser_dsn
from salience.local.doctor import Check, examine
from salience.local.roles import OWNER, RUNTIME
from salience.local.work import CHECKOUT
from salience.settings import Settings
from salience.store.migrations import available, migrate, require
from tests.conftest import Scripted, ended
from tests.processes import Processes

Dsns = tuple[str, str]


@pytest.fixture
def database(stack: Stack) -> Iterator[Dsns]:
    """A second, empty database of the embedded server: the URIs of its runtime role and of its owner."""
    assert stack.info.postgres
    name = f"own_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(superuser_dsn(stack.home.root), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
        connection.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(name), sql.Identifier(RUNTIME))
        )
    yield _named(stack.info.postgres.runtime_dsn, name), _named(stack.info.postgres.owner_dsn, name)
    with psycopg.connect(superuser_dsn(stack.home.root), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _named(dsn: str, database: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


def found(settings: Settings) -> dict[str, Check]:
    """What the doctor says, by name."""
    return {check.name: check for check in examine(settings)}


@pytest.mark.timeout(180)
async def test_a_worker_with_the_owners_uri_migrates_and_serves(
    stack: Stack, settings: Settings, database: Dsns, tmp_path: Path, scripted: Scripted, session_id: str
) -> None:
    runtime, owner = database
    processes = Processes(stack.home.root, f"own-{uuid.uuid4().hex[:8]}", tmp_path)
    there = settings.model_copy(update={"postgres_dsn": runtime, "task_queue": processes.queue})
    await processes.start("all", {"SALIENCE_POSTGRES_DSN": runtime, "SALIENCE_POSTGRES_OWNER_DSN": owner})
    try:
        async with await Salience.connect(there) as salience:
            await asyncio.wait_for(processes.ready("all"), 60)
            await salience.start(scripted([{"text": "Hello."}]), "hi", session_id=session_id)
            await ended(salience, session_id)
    finally:
        await processes.close()
    with psycopg.connect(runtime) as connection:
        assert connection.execute("SELECT count(*) FROM events WHERE session_id = %s", (session_id,)).fetchone() != (0,)
    with psycopg.connect(settings.postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM events WHERE session_id = %s", (session_id,)).fetchone() == (0,)


def test_a_worker_without_it_refuses_an_older_schema_and_says_what_to_do(stack: Stack, database: Dsns) -> None:
    runtime, owner = database
    variables = {"SALIENCE_HOME": str(stack.home.root), "SALIENCE_POSTGRES_DSN": runtime}
    done = subprocess.run(
        [sys.executable, "-m", "salience.worker", "--role", "context"],
        env={**os.environ, **variables},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 5
    assert "the database is at schema 0" in done.stderr
    assert "SALIENCE_POSTGRES_OWNER_DSN" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    migrate(owner)
    require(runtime)


def test_a_role_that_may_not_change_the_schema_is_said_so(database: Dsns) -> None:
    with pytest.raises(BackendUnavailable) as raised:
        migrate(database[0])
    assert "permission denied" in raised.value.message
    assert "owns the schema" in raised.value.mend


def test_the_doctor_sees_an_older_schema_a_wrong_role_and_an_owner_that_is_none(stack: Stack, database: Dsns) -> None:
    runtime, owner = database
    there = Settings(home=stack.home.root, postgres_dsn=runtime)
    checks = found(there)
    assert not checks["postgres"].ok
    assert "schema 0" in checks["postgres"].detail
    assert "SALIENCE_POSTGRES_OWNER_DSN" in checks["postgres"].mend
    swapped = found(Settings(home=stack.home.root, postgres_dsn=owner, postgres_owner_dsn=runtime))
    assert not swapped["postgres owner"].ok
    assert "owns the schema" in swapped["postgres owner"].mend
    assert migrate(owner) == available()[-1][0]
    swapped = found(Settings(home=stack.home.root, postgres_dsn=owner))
    assert "may change the journal" in swapped["postgres"].detail
    sound = found(Settings(home=stack.home.root, postgres_dsn=runtime, postgres_owner_dsn=owner))
    assert sound["postgres"].ok
    assert sound["postgres owner"].ok


def test_no_password_is_shown(stack: Stack, database: Dsns) -> None:
    runtime, owner = database
    passwords = stack.home.passwords()
    there = Settings(home=stack.home.root, postgres_dsn=runtime, postgres_owner_dsn=owner)
    shown = "".join(check.model_dump_json() for check in examine(there)) + repr(there) + str(there.shown())
    lost = there.model_copy(update={"postgres_dsn": runtime.replace(urlsplit(runtime).path, "/nowhere")})
    shown += "".join(check.model_dump_json() for check in examine(lost))
    assert RUNTIME in shown
    assert passwords.runtime not in shown
    assert passwords.owner not in shown
