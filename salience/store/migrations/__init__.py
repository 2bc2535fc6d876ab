"""The schema moves forward by numbered files that never change once released; their checksums are kept (design §6)."""

from __future__ import annotations

from importlib.resources import files

import psycopg

from salience.errors import BackendUnavailable, VerificationFailed
from salience.model.canonical import digest

_LOCK = 0x5A11E7CE
"""Advisory lock: two processes that migrate at once do so one after the other."""


def available() -> list[tuple[int, str, str]]:
    """The migrations of this release as (number, name, SQL), in order."""
    found: list[tuple[int, str, str]] = []
    for item in files(__package__).iterdir():
        if item.name.endswith(".sql"):
            found.append((int(item.name.split("_", 1)[0]), item.name, item.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(owner_dsn: str) -> int:
    """Bring a database to this release's schema.

    Args:
        owner_dsn: libpq URI of the role that owns the schema (`salience_owner`); the role `salience_runtime` must exist.

    Returns:
        The schema's version.

    Raises:
        VerificationFailed: a migration that was applied differs from the file of this release, or the schema is newer.
        BackendUnavailable: Postgres did not answer.
    """
    try:
        with psycopg.connect(owner_dsn, connect_timeout=10) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations ("
                "version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,"
                "applied_at timestamptz NOT NULL DEFAULT now())"
            )
            rows = connection.execute("SELECT version, checksum FROM schema_migrations").fetchall()
            applied: dict[int, str] = dict(rows)
            known = available()
            if applied and max(applied) > known[-1][0]:
                raise VerificationFailed(
                    f"the database is at schema {max(applied)}, this release knows {known[-1][0]}",
                    mend="run a newer release",
                )
            for version, name, sql in known:
                checksum = digest(sql)
                if version in applied:
                    if applied[version] != checksum:
                        raise VerificationFailed(
                            f"migration {name} differs from the one that was applied",
                            mend="run the release that created this database",
                        )
                    continue
                connection.execute(sql.encode())
                connection.execute(
                    "INSERT INTO schema_migrations (version, name, checksum) VALUES (%s, %s, %s)",
                    (version, name, checksum),
                )
            return known[-1][0]
    except psycopg.OperationalError as error:
        raise BackendUnavailable(f"Postgres did not answer: {str(error).strip()}", mend="salience doctor") from error
