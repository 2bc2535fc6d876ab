"""Servers without a worker: every test brings workers of its own, on a queue of its own, and kills them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from salience.local import Stack, resolve
from salience.settings import Settings

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what was measured; nothing is asserted about times."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "chaos"
    ]
    if lines:
        terminalreporter.section("chaos")
        for line in lines:
            terminalreporter.write_line(line)
