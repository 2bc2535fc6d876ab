"""A file is replaced whole, keeps its mode, and nothing but a regular file is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from salience.workspace.files import read, replace
from salience.workspace.paths import PathRefused, Workspace, locate


def test_replace_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(b"old\r\n")
    script.chmod(0o751)
    with locate(Workspace.at(str(tmp_path)), "run.sh") as spot:
        replace(spot, b"new\r\n", tag="t")
    assert script.read_bytes() == b"new\r\n"
    assert script.stat().st_mode & 0o777 == 0o751
    assert os.listdir(tmp_path) == ["run.sh"]


def test_replace_makes_folders_and_takes_the_umask(tmp_path: Path) -> None:
    with locate(Workspace.at(str(tmp_path)), "a/b/c.txt") as spot:
        replace(spot, b"x", tag="t")
    made = tmp_path / "a" / "b" / "c.txt"
    umask = os.umask(0)
    os.umask(umask)
    assert made.stat().st_mode & 0o777 == 0o666 & ~umask


def test_what_a_crash_left_is_cleared_by_the_same_tag(tmp_path: Path) -> None:
    (tmp_path / ".salience-t").write_text("half")
    with locate(Workspace.at(str(tmp_path)), "f") as spot:
        replace(spot, b"whole", tag="t")
    assert os.listdir(tmp_path) == ["f"]


def test_a_link_inside_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with locate(Workspace.at(str(tmp_path)), "link") as spot:
        assert spot.path == "target"
        replace(spot, b"new", tag="t")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_reading_is_for_regular_files_within_the_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 11)
    workspace = Workspace.at(str(tmp_path))
    for name in ("fifo", "folder", "big"):
        with locate(workspace, name) as spot, pytest.raises(PathRefused):
            read(spot, limit=10)
    with locate(workspace, "absent/file") as spot:
        assert read(spot, limit=10) is None


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with locate(Workspace.at(str(tmp_path)), "folder") as spot, pytest.raises(PathRefused):
        replace(spot, b"x", tag="t")
    assert os.listdir(tmp_path) == ["folder"]
