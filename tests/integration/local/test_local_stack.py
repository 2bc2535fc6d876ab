"""The stack within a test's process: its roles, its listeners, and what a kill -9 of each part costs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from temporalio.client import Client

from salience.errors import BackendUnavailable, SalienceError, StackNotRunning
from salience.local import Stack, owner_dsn, resolve, running
from salience.local import parts as parts_module
from salience.local.parts import Part
from salience.local.process import ProcessId, spawn
from salience.settings import Settings

pytestmark = pytest.mark.timeout(60)

READY_WORKER = """
import os, pathlib, time
pathlib.Path(os.environ["SALIENCE_HOME"], "run", "worker.ready").touch()
time.sleep(600)
"""


def make_notes(dsn: str) -> None:
    """Stands for the migrations: these tests are about the servers, not about the schema."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        connection.execute("GRANT SELECT, INSERT ON notes TO salience_runtime")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(worker=True, prepare=(make_notes,), worker_command=(sys.executable, "-c", READY_WORKER)) as stack:
        yield stack


def _notes(stack: Stack) -> list[str]:
    postgres = stack.info.postgres
    assert postgres
    with psycopg.connect(postgres.runtime_dsn) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY text")]


def test_the_runtime_role_is_no_superuser_and_owns_nothing(stack: Stack) -> None:
    assert stack.info.postgres
    with psycopg.connect(stack.info.postgres.runtime_dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT current_user, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles"
            " WHERE rolname = current_user"
        ).fetchone()
        assert row == ("salience_runtime", False, False, False, False)
        for refused in ("CREATE TABLE mine (a int)", "DROP TABLE notes", "DELETE FROM notes", "CREATE TEMP TABLE t ()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused.encode())


def test_postgres_wants_a_password(stack: Stack) -> None:
    for role in ("postgres", "salience_owner", "salience_runtime"):
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(host=stack.info.socket_dir, user=role, dbname="salience", passfile="/dev/null")


def test_every_listener_is_on_loopback(stack: Stack) -> None:
    info = stack.info
    assert info.temporal
    assert info.postgres
    found = [
        connection.laddr.ip
        for pid in (info.temporal.pid, info.postgres.pid)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert found
    assert set(found) == {"127.0.0.1"}


def test_no_part_hears_ctrl_c_of_our_terminal(stack: Stack) -> None:
    for process in stack.info.processes():
        assert os.getsid(process.pid) != os.getsid(0)


def test_what_is_private_is_readable_by_its_owner_only(stack: Stack) -> None:
    for file in (stack.home.stack_file, stack.home.passwords_file):
        assert file.stat().st_mode & 0o077 == 0
    assert "@" in stack.info.model_dump_json()
    passwords = stack.home.passwords()
    assert passwords.runtime not in stack.info.without_passwords().model_dump_json()


def test_settings_are_filled_in_from_the_stack_and_only_where_empty(stack: Stack) -> None:
    assert stack.info.temporal
    assert stack.info.postgres
    filled = resolve(Settings(home=stack.home.root))
    assert filled.temporal_address == stack.info.temporal.address
    assert filled.postgres_dsn == stack.info.postgres.runtime_dsn
    assert filled.blob_dir == str(stack.home.root / "blobs")
    assert resolve(Settings(home=stack.home.root, temporal_address="t:7233")).temporal_address == "t:7233"
    assert owner_dsn(stack.home.root) == stack.info.postgres.owner_dsn


def test_without_a_stack_settings_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StackNotRunning) as raised:
        resolve(Settings(home=tmp_path))
    assert raised.value.mend == "salience up"
    elsewhere = Settings(home=tmp_path, temporal_address="t:7233", postgres_dsn="postgresql://p")
    assert resolve(elsewhere).postgres_dsn == "postgresql://p"


def test_postgres_killed_keeps_every_committed_row(stack: Stack) -> None:
    assert stack.info.postgres
    connection = psycopg.connect(stack.info.postgres.runtime_dsn)
    connection.execute("INSERT INTO notes VALUES ('kept')")
    connection.commit()
    connection.execute("INSERT INTO notes VALUES ('never committed')")
    pid = stack.kill("postgres")
    stack.wait_restarted("postgres", pid)
    connection.close()
    assert _notes(stack) == ["kept"]


async def test_temporal_killed_keeps_its_workflows_and_its_address(stack: Stack) -> None:
    assert stack.info.temporal
    address = stack.info.temporal.address
    client = await Client.connect(address)
    handle = await client.start_workflow("Nobody", id="kept", task_queue="nobody")
    pid = stack.kill("temporal")
    await asyncio.to_thread(stack.wait_restarted, "temporal", pid)
    assert stack.info.temporal.address == address
    found = await (await Client.connect(address)).get_workflow_handle("kept").describe()
    assert found.run_id == handle.first_execution_run_id


def test_a_worker_that_dies_is_back_at_once(stack: Stack) -> None:
    time.sleep(max(0.0, 5.2 - (time.time() - stack.info.started_at)))  # a death right after the start is made to wait
    pid = stack.kill("worker")
    assert stack.wait_restarted("worker", pid) < 2  # measured 0.06 s; the machine may be busy
    assert stack.info.worker
    assert stack.info.worker.restarts == 1


def test_a_worker_that_cannot_start_ends_the_stack_with_its_last_words(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('the model is unknown')")
    failing = Stack(worker=True, prepare=(), worker_command=command)
    with pytest.raises(BackendUnavailable, match="worker ended with code 1 at start: the model is unknown"):
        failing.__enter__()
    assert not failing.home.root.exists()
    assert not _mentioning(str(failing.home.root))


def test_a_stack_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with Stack(prepare=()) as stack:
        processes = stack.info.processes()
        sockets = Path(stack.info.socket_dir)
        assert running(stack.home.root)
        with pytest.raises(SalienceError, match="already runs"):
            Stack(stack.home.root, prepare=()).__enter__()
    assert not any(process.alive() for process in processes)
    assert not sockets.exists()
    assert not stack.home.root.exists()


async def test_a_part_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Part):
        name = "mute"
        answers = True

        async def spawn(self) -> asyncio.subprocess.Process:
            return await spawn(["/bin/sleep", "60"], env={}, log=self.log)

        async def healthy(self) -> bool:
            return self.answers

        async def stop(self) -> None: ...

    monkeypatch.setattr(parts_module, "CHECK_S", 0.05)
    monkeypatch.setattr(parts_module, "HUNG_S", 0.2)
    part = Mute(tmp_path / "log")
    await part.start()
    part.answers = False
    assert await part.ended() == "did not answer for 0 s"
    assert ProcessId.of(part.pid) is None


def _mentioning(text: str) -> list[str]:
    return [
        line
        for process in psutil.process_iter(["cmdline"])
        if text in (line := " ".join(process.info["cmdline"] or []))
    ]
