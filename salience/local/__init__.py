"""The embedded stack: the real Temporal server, real Postgres and a worker, with nothing but Python (spec PPL-5)."""

from salience.local.belongings import copy_home, purge
from salience.local.detached import down, up
from salience.local.info import StackInfo, owner_dsn, running, superuser_dsn
from salience.local.resolve import resolve
from salience.local.stack import Stack

__all__ = [
    "Stack",
    "StackInfo",
    "copy_home",
    "down",
    "owner_dsn",
    "purge",
    "resolve",
    "running",
    "superuser_dsn",
    "up",
]
