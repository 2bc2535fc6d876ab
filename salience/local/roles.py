"""The owner owns the schema; the runtime role owns nothing and has what the migrations grant (spec EVT-3)."""

from __future__ import annotations

import psycopg
from psycopg import sql

from salience.errors import BackendUnavailable
from salience.local.home import Passwords

DATABASE = "salience"
SUPERUSER, OWNER, RUNTIME = "postgres", "salience_owner", "salience_runtime"


async def prepare_database(superuser_dsn: str, passwords: Passwords) -> None:
    """Make the database and its two roles unless they exist.

    Args:
        superuser_dsn: libpq URI of the superuser, to the database `postgres`.
        passwords: of the roles that are made.

    Raises:
        BackendUnavailable: Postgres refused.
    """
    attributes = sql.SQL("LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS")
    try:
        async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as connection:
            cursor = await connection.execute("SELECT rolname FROM pg_roles")
            roles = {row[0] for row in await cursor.fetchall()}
            for role, password in ((OWNER, passwords.owner), (RUNTIME, passwords.runtime)):
                if role not in roles:
                    await connection.execute(
                        sql.SQL("CREATE ROLE {} {} PASSWORD {}").format(
                            sql.Identifier(role), attributes, sql.Literal(password)
                        )
                    )
            cursor = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if await cursor.fetchone() is None:
                name = sql.Identifier(DATABASE)
                await connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, sql.Identifier(OWNER)))
            # Every time, so that a kill between these statements is mended by the next start.
            for database in (DATABASE, "postgres", "template1"):
                await connection.execute(
                    sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
                )
            await connection.execute(
                sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(DATABASE), sql.Identifier(RUNTIME))
            )
    except psycopg.Error as error:
        what = " ".join(str(error).split())
        raise BackendUnavailable(f"Postgres could not be prepared: {what}", mend="salience doctor") from error
