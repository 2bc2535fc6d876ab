"""Servers without a worker: every test brings workers of its own, on a queue of its own, and kills them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from salience.local import Stack, resolve
from salience.settings import Settings
from tests.chaos.toll import Toll

Say = Callable[[str], None]


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The embedded servers; not the stack of the other tests, which these would disturb."""
    with Stack(worker=False) as running:
        yield running


@pytest.fixture(scope="session")
def settings(stack: Stack) -> Settings:
    """Settings that name the running servers."""
    return resolve(Settings(home=stack.home.root))


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    """Takes the line about a test that is shown at the end: how often was killed, how long recovery took."""
    return lambda line: record_property("chaos", line)


@pytest.fixture
def toll(record_property: Callable[[str, object], None]) -> Iterator[Toll]:
    """What the faults of this test cost; added to those of all others. A figure that must be zero fails the test."""
    counted = Toll()
    yield counted
    record_property("toll", counted.plain())
    assert not counted.wrong, counted.wrong
