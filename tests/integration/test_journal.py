"""The journal is append-only in fact, chained, anchored, and re-created from history or archives (spec EVT-3, EVT-4, EVT-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from activities.verification import Verification
from salience.client import Salience
from salience.errors import JournalConflict
from salience.local import Stack
from salience.log.chain import Row
from salience.store.history import Histories
from salience.store.journal import Batch, Position
from tests.conftest import Scripted, ended, until

TURNS = [
    {"text": "a plan", "tool_calls": [{"name": "write_file", "args": {"path": "x.txt", "content": "one\n"}}]},
    {"tool_calls": [{"name": "read_file", "args": {"path": "x.txt"}}]},
    {"text": "done"},
]


@pytest.fixture
async def finished(salience: Salience, scripted: Scripted, session_id: str) -> AsyncIterator[str]:
    await salience.start(scripted(TURNS), "write", session_id=session_id)
    await ended(salience, session_id)
    return session_id


def verification(salience: Salience, *, temporal: bool = True) -> Verification:
    histories = Histories(salience.temporal) if temporal else None
    return Verification(salience.postgres, salience.journal, salience.blobs, histories)


def as_superuser(stack: Stack, *statements: str) -> None:
    """What only DDL rights can do: change the journal with its triggers off."""
    with psycopg.connect(stack.info.postgres.superuser_dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("statement", ["UPDATE events SET type = type", "DELETE FROM events", "TRUNCATE events"])
@pytest.mark.parametrize("role", ["runtime_dsn", "owner_dsn"])
async def test_the_journal_refuses_change(stack: Stack, finished: str, role: str, statement: str) -> None:
    with (
        psycopg.connect(getattr(stack.info.postgres, role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_the_runtime_role_is_nobody_special(stack: Stack) -> None:
    with psycopg.connect(stack.info.postgres.runtime_dsn) as connection:
        row = connection.execute(
            "SELECT rolsuper, rolcreatedb, rolcreaterole, rolbypassrls FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row == (False, False, False, False)


async def test_one_flipped_byte_is_found_and_located(stack: Stack, salience: Salience, finished: str) -> None:
    as_superuser(
        stack,
        f"UPDATE events SET payload = overlay(payload placing 'X' from 5 for 1) WHERE session_id = '{finished}' AND seq = 7",
    )
    report = await verification(salience).verify(finished)
    assert not report.ok
    assert report.findings[0].seq == 7
    assert report.findings[0].rule == "EVT-4"


async def test_a_rewritten_chain_is_found_by_the_anchors(stack: Stack, salience: Salience, finished: str) -> None:
    """Whoever changes a row and computes all hashes again still disagrees with the heads that history holds."""
    from salience.log.chain import link
    from salience.model.canonical import digest

    rows = [row async for row in salience.journal.rows(finished)]
    changed = (rows[1].payload or "").replace("write", "wrote")
    previous, statements = rows[0].hash, []
    for row in rows[1:]:
        payload = changed if row.seq == 2 else row.payload or ""
        payload_digest = digest(payload)
        previous = link(previous, row.metadata.encode(), payload_digest)
        quoted = payload.replace("'", "''")
        statements.append(
            f"UPDATE events SET payload = '{quoted}', payload_digest = '{payload_digest}', hash = '{previous}'"
            f" WHERE session_id = '{finished}' AND seq = {row.seq}"
        )
    statements.append(f"UPDATE sessions SET head = '{previous}' WHERE session_id = '{finished}'")
    as_superuser(stack, *statements)
    without_history = await verification(salience, temporal=False).verify(finished)
    assert {finding.rule for finding in without_history.findings} >= {"EVT-4"}
    with_history = await verification(salience).verify(finished)
    assert any(finding.rule == "EVT-2" and finding.seq == 2 for finding in with_history.findings)


async def test_a_missing_row_is_found(stack: Stack, salience: Salience, finished: str) -> None:
    as_superuser(stack, f"DELETE FROM events WHERE session_id = '{finished}' AND seq = 4")
    report = await verification(salience).verify(finished)
    assert (report.ok, report.findings[0].seq) == (False, 4)


async def test_an_erased_payload_is_told_apart_from_a_changed_one(
    stack: Stack, salience: Salience, finished: str
) -> None:
    as_superuser(stack, f"UPDATE events SET payload = NULL WHERE session_id = '{finished}' AND seq = 2")
    report = await verification(salience).verify(finished)
    assert (report.ok, report.erased) == (True, 1)


@pytest.mark.parametrize("source", ["history", "archive"])
async def test_a_deleted_journal_is_rebuilt_identically(
    stack: Stack, salience: Salience, finished: str, source: str
) -> None:
    await until(lambda: _archived(salience, finished))
    before = [row async for row in salience.journal.rows(finished)]
    state = await salience.state(finished)
    transcript = await salience.journal.transcript(finished)
    tables = ["events", "messages", "state_snapshots", "bundles", "artifacts"]
    if source == "archive":
        tables += ["runs", "sessions"]
    as_superuser(stack, *(f"DELETE FROM {table} WHERE session_id = '{finished}'" for table in tables))
    check = verification(salience, temporal=source == "history")
    assert await check.rebuild(finished) == len(before)
    assert [row async for row in salience.journal.rows(finished)] == before
    assert await salience.state(finished) == state
    assert await salience.journal.transcript(finished) == transcript
    report = await check.verify(finished)
    assert report.ok, report.findings
    assert (report.runs_from_history, report.runs_from_archive) == ((1, 0) if source == "history" else (0, 1))


async def _archived(salience: Salience, session_id: str) -> bool:
    runs = await salience.journal.runs(session_id)
    return bool(runs) and all(run.archive_ref for run in runs)


async def test_bundles_are_rebuilt_with_their_tables_emptied(stack: Stack, salience: Salience, finished: str) -> None:
    as_superuser(
        stack,
        f"DELETE FROM bundles WHERE session_id = '{finished}'",
        f"DELETE FROM state_snapshots WHERE session_id = '{finished}'",
        "DELETE FROM segments",
    )
    report = await verification(salience).verify(finished)
    assert report.ok, report.findings
    assert report.bundles == 3


async def test_a_conflicting_row_is_an_error(salience: Salience, finished: str) -> None:
    rows = [row async for row in salience.journal.rows(finished)]
    other = Row(2, rows[1].event_id, rows[1].run_id, rows[1].type, rows[1].metadata, "{}", "0" * 64, "1" * 64)
    projection = await salience.journal.load(finished)
    assert projection is not None
    here = Position(projection.cursor.seq, projection.head)
    async with salience.postgres.connection() as connection:
        assert await salience.journal.record(connection, here, Batch(projection, rows[:3]))
        assert not await salience.journal.record(connection, Position(1, "elsewhere"), Batch(projection, rows[:3]))
        with pytest.raises(JournalConflict):
            await salience.journal.record(connection, here, Batch(projection, [other]))


async def test_a_lost_blob_is_named(stack: Stack, salience: Salience, finished: str) -> None:
    events = [event async for event in salience.events(finished)]
    ref = next(event.payload.output_ref for event in events if event.type == "ToolCallFinished")  # type: ignore[attr-defined]
    path = stack.home.root / "blobs" / ref[:2] / ref
    kept = path.read_bytes()
    path.write_bytes(b"!" + kept[1:])
    try:
        # This client may hold the bytes in memory; another one reads the file.
        async with await Salience.connect(salience.settings) as other:
            report = await verification(other).verify(finished)
        assert not report.ok
        assert "does not match its hash" in report.findings[0].message
    finally:
        path.write_bytes(kept)


async def test_state_at_is_the_fold_up_to_there(salience: Salience, finished: str) -> None:
    from salience.projection.projection import Projection

    events = [event async for event in salience.events(finished)]
    twice = []
    for _ in range(2):
        projection = Projection.empty(finished)
        for event in events:
            projection.fold(event)
        twice.append(projection.state)
    assert twice[0] == twice[1] == await salience.state(finished)
