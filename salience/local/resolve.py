"""Settings that name no backend mean the embedded one: they are filled in from the running stack, never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from salience.local.info import ready

if TYPE_CHECKING:  # the supervisor imports this package and needs no settings: a quarter of its start
    from salience.settings import Settings


def resolve(settings: Settings) -> Settings:
    """Settings with every backend address filled in; what is set stays.

    Raises:
        StackNotRunning: an address is empty and no stack runs under `settings.home`.
    """
    filled: dict[str, str] = {}
    if not settings.blob_dir:
        filled["blob_dir"] = str(settings.blobs)
    if not settings.temporal_address or not settings.postgres_dsn:
        info = ready(settings.home)
        assert info.temporal is not None
        assert info.postgres is not None
        if not settings.temporal_address:
            filled["temporal_address"] = info.temporal.address
        if not settings.postgres_dsn:
            filled["postgres_dsn"] = info.postgres.runtime_dsn
    return settings.model_copy(update=filled)
