"""A session of its own for each test of a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from salience.settings import Settings
from tests.integration.tools.scene import Scene


@pytest.fixture
async def scene(tmp_path: Path, settings: Settings) -> AsyncIterator[Scene]:
    """A session with an empty workspace."""
    async with Scene(tmp_path, settings) as scene:
        yield scene
