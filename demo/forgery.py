"""A forgery changes one byte of a journal row, as only a superuser can who switches the refusing trigger off."""

from __future__ import annotations

from pathlib import Path

import psycopg

from salience.local import superuser_dsn


def pass_a_failed_check(home: Path, session_id: str) -> int:
    """Turn the exit code of the first command that failed from 1 to 0; returns the seq of its row.

    Args:
        home: home of a running stack; a copy, for what is changed here stays changed.
        session_id: whose journal.
    """
    with psycopg.connect(superuser_dsn(home)) as connection:
        connection.execute("SET session_replication_role = replica")
        row = connection.execute(
            """
            UPDATE events SET payload = replace(payload, '"exit_code":1', '"exit_code":0')
            WHERE session_id = %s AND seq = (
                SELECT min(seq) FROM events WHERE session_id = %s AND payload LIKE '%%"exit_code":1,%%'
            ) RETURNING seq
            """,
            (session_id, session_id),
        ).fetchone()
    assert row is not None, "no command of this session failed"
    return int(row[0])
