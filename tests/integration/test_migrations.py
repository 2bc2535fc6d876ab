"""The schema moves forward only, and says so when it cannot (design §6)."""

from __future__ import annotations

import threading

import psycopg
import pytest

from salience.errors import BackendUnavailable, VerificationFailed
from salience.local import Stack
from salience.store.migrations import available, migrate


def test_migrating_again_and_at_once_changes_nothing(stack: Stack) -> None:
    dsn = stack.info.postgres.owner_dsn
    versions: list[int] = []
    threads = [threading.Thread(target=lambda: versions.append(migrate(dsn))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [available()[-1][0]] * 3


@pytest.mark.parametrize(
    ("change", "undo", "message"),
    [
        (
            "UPDATE schema_migrations SET checksum = 'x' || checksum WHERE version = 1",
            "UPDATE schema_migrations SET checksum = substr(checksum, 2) WHERE version = 1",
            "differs from the one that was applied",
        ),
        (
            "INSERT INTO schema_migrations (version, name, checksum) VALUES (9999, 'later', 'x')",
            "DELETE FROM schema_migrations WHERE version = 9999",
            "the database is at schema 9999",
        ),
    ],
)
def test_a_schema_of_another_release_is_refused(stack: Stack, change: str, undo: str, message: str) -> None:
    dsn = stack.info.postgres.owner_dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(change.encode())
        try:
            with pytest.raises(VerificationFailed, match=message):
                migrate(dsn)
        finally:
            connection.execute(undo.encode())


def test_an_absent_database_is_one_clear_error() -> None:
    with pytest.raises(BackendUnavailable, match="did not answer"):
        migrate("postgresql://nobody@127.0.0.1:1/none")
