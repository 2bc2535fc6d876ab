"""A session mends a bug of a published release, and its own tests agree; without the edit the same job fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from demo.stage import ROOT, Stage

TURNS = ROOT / "demo" / "real" / "turns.yaml"
SOURCE = ROOT / ".cache" / "marshmallow-3.13.0.tar.gz"

pytestmark = [
    pytest.mark.realworld,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not SOURCE.exists(), reason=f"`make setup` had no package index in reach to get {SOURCE.name}"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the demo plays; afterwards nothing of it runs or lies anywhere."""
    yield tmp_path / "demo"
    Stage(tmp_path / "demo").clear()


def play(folder: Path, turns: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "demo.real", "--folder", str(folder), "--turns", str(turns)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def test_the_rounding_bug_of_marshmallow_is_mended(folder: Path) -> None:
    done = play(folder, TURNS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert done.stdout.count("275 passed") == 2
    assert "✓ every duration comes out as it went in" in done.stdout


def test_without_the_edit_it_fails(folder: Path, tmp_path: Path) -> None:
    script = yaml.safe_load(TURNS.read_text())
    for turn in script["turns"]:
        for call in turn["tool_calls"]:
            if call["name"] == "edit_file":
                call.update(name="read_file", args={"path": call["args"]["path"], "end_line": 1})
    turns = tmp_path / "turns.yaml"
    turns.write_text(yaml.safe_dump(script))
    done = play(folder, turns)
    assert done.returncode == 1
    assert "the demo failed: every duration comes out as it went in" in done.stderr
