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
        BackendUnavailable: Postgres did not answer, or the role may not do it.
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
        raise _unavailable(error) from error
    except psycopg.Error as error:
        raise BackendUnavailable(
            f"the database could not be brought to this release's schema: {_said(error)}",
            mend="give the URI of the role that owns the schema, and make the role salience_runtime first",
        ) from error


def version_of(dsn: str) -> int:
    """The schema that a database is at, 0 for none; any role that can read it may ask.

    Raises:
        BackendUnavailable: Postgres did not answer.
    """
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            row = connection.execute("SELECT to_regclass('schema_migrations')").fetchone()
            if row is None or row[0] is None:
                return 0
            row = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
            return row[0] or 0 if row else 0
    except psycopg.Error as error:
        raise _unavailable(error) from error


def require(dsn: str) -> None:
    """Refuse a database that is not at this release's schema.

    Args:
        dsn: libpq URI of any role that can read it.

    Raises:
        VerificationFailed: its schema is newer.
        BackendUnavailable: its schema is older, or Postgres did not answer.
    """
    found, needed = version_of(dsn), available()[-1][0]
    if found > needed:
        raise VerificationFailed(
            f"the database is at schema {found}, this release knows {needed}", mend="run a newer release"
        )
    if found < needed:
        raise BackendUnavailable(
            f"the database is at schema {found}, this release needs {needed}",
            mend="start one worker with SALIENCE_POSTGRES_OWNER_DSN, the URI of the role that owns the schema",
        )


def _unavailable(error: psycopg.Error) -> BackendUnavailable:
    return BackendUnavailable(f"Postgres did not answer: {_said(error)}", mend="salience doctor")


def _said(error: psycopg.Error) -> str:
    return " ".join(str(error).split())[:200]
