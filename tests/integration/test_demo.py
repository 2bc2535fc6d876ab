"""`make demo` does what its headings say: the demo checks each step itself and fails when one is not so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.stage import ROOT, Stage

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a demo plays; afterwards nothing of it runs or lies anywhere."""
    yield tmp_path / "demo"
    Stage(tmp_path / "demo").clear()


def play(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo", "--folder", str(folder), *words], cwd=ROOT, capture_output=True, text=True
    )


def test_a_killed_worker_a_mended_test_and_a_forged_byte(folder: Path) -> None:
    done = play(folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "kill -9" in done.stdout
    assert "✓ all five tests pass" in done.stdout
    assert "✓ verify ends with code 4" in done.stdout


def test_a_session_that_edits_nothing_fails_the_demo(folder: Path, tmp_path: Path) -> None:
    turns = tmp_path / "turns.yaml"
    turns.write_text("turns: [{text: a, tool_calls: [{name: list_files}]}, {text: done}]")
    done = play(folder, "--turns", str(turns))
    assert done.returncode == 1
    assert "nothing was killed" in done.stderr
