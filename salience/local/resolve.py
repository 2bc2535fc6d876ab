"""Settings that name no backend mean the embedded one: they are filled in from the running stack, never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from salience.errors import StackNotRunning
from salience.local.info import ready

if TYPE_CHECKING:  # the supervisor imports this package and needs no settings: a quarter of its start
    from salience.settings import Settings


def resolve(settings: Settings, *, postgres: bool = True) -> Settings:
    """Settings with every backend address filled in; what is set stays.

    Args:
        settings: as they were read.
        postgres: whether this process needs Postgres; a worker of role `workflow` does not.

    Raises:
        StackNotRunning: an address is empty and no stack that has this backend runs under `settings.home`.
    """
    filled: dict[str, str] = {}
    if not settings.blob_dir:
        filled["blob_dir"] = str(settings.blobs)
    postgres = postgres and not settings.postgres_dsn
    if not settings.temporal_address or postgres:
        info = ready(settings.home)
        if not settings.temporal_address:
            if info.temporal is None:
                raise _not_embedded("Temporal", settings, "SALIENCE_TEMPORAL_ADDRESS")
            filled["temporal_address"] = info.temporal.address
        if postgres:
            if info.postgres is None:
                raise _not_embedded("Postgres", settings, "SALIENCE_POSTGRES_DSN")
            filled["postgres_dsn"] = info.postgres.runtime_dsn
    return settings.model_copy(update=filled)


def _not_embedded(part: str, settings: Settings, variable: str) -> StackNotRunning:
    return StackNotRunning(
        f"the stack under {settings.home} has no {part} of its own, and none is named", mend=f"set {variable}"
    )
