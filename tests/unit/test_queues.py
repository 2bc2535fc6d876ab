"""Every activity has exactly one role, and a process serves what its role says and nothing else."""

from __future__ import annotations

from typing import Any, cast, get_args

from temporalio.client import Client

from salience.model.calls import ROLE_OF, Role, queue_of
from salience.queues import ALL, ROLES
from salience.settings import Settings
from salience.worker import Stores, activities_of


async def test_every_activity_has_a_role_and_every_role_that_is_given_has_an_activity() -> None:
    settings = Settings(postgres_dsn="postgresql://nobody@127.0.0.1:1/none")
    activities = activities_of(cast(Client, None), settings, Stores.of(settings))
    assert set(activities) == set(ROLE_OF)
    defined: dict[str, Any] = {name: vars(work.__func__) for name, work in activities.items()}  # type: ignore[attr-defined]
    assert {name: each["__temporal_activity_definition"].name for name, each in defined.items()} == {
        name: name for name in activities
    }
    assert set(ROLE_OF.values()) == set(get_args(Role)) - {"workflow"}


def test_queues_are_named_from_the_sessions_own() -> None:
    assert [queue_of("q", role) for role in get_args(Role)] == ["q", "q.context", "q.model", "q.tools"]
    assert {*get_args(Role), ALL} == set(ROLES)
