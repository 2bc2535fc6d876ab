"""No path a model can name leads out of the workspace, and no swap after the judgement moves the place (POL-3)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from salience.workspace.files import read, replace
from salience.workspace.paths import PathRefused, Workspace, WorkspaceGone, locate


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a\n")
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "ws-evil" / "secret").write_text("secret\n")
    (tmp_path / "secret").write_text("secret\n")
    (root / "out").symlink_to("../ws-evil")
    (root / "out_file").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to("src")
    (root / "in_absolute").symlink_to(root / "src")
    (root / "loop").symlink_to("loop")
    (root / "src" / "up").symlink_to("..")
    return root


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("src/a.py", "src/a.py"),
        ("./src//a.py", "src/a.py"),
        ("src/../src/a.py", "src/a.py"),
        ("in/a.py", "src/a.py"),
        ("in_absolute/a.py", "src/a.py"),
        ("src/up/src/a.py", "src/a.py"),
        (".", "."),
        ("src", "src"),
        ("src/up", "."),
        ("new/deep/file", "new/deep/file"),
    ],
)
def test_resolves_inside(root: Path, named: str, path: str) -> None:
    workspace = Workspace.at(str(root))
    for form in (named, str(root / named)):
        with locate(workspace, form) as spot:
            assert spot.path == path


@pytest.mark.parametrize(
    "named",
    [
        "..", "../secret", "../ws-evil/secret", "src/../../secret", "src/up/../secret", "out/secret", "out", "out_file",
        "/etc/passwd", "/proc/self/root/etc/passwd", "loop", "loop/x", "", "a\x00b", "x" * 256, "a/" * 3000,
        "src/a.py/x",
        "new/../../secret", "nowhere/../x", "\ud800",
    ],
)  # fmt: skip
def test_refuses(root: Path, named: str) -> None:
    with pytest.raises(PathRefused), locate(Workspace.at(str(root)), named):
        pass


def test_a_prefix_is_no_parent(root: Path) -> None:
    with pytest.raises(PathRefused, match="outside"), locate(Workspace.at(str(root)), f"{root}-evil/secret"):
        pass


def test_the_runtimes_own_folder_is_out_of_reach(root: Path) -> None:
    home = root / ".local" / "share" / "salience"
    home.mkdir(parents=True)
    (root / "alias").symlink_to(".local/share/salience")
    workspace = Workspace.at(str(root), runtime=(home, Path("/nowhere")))
    assert workspace.hidden == {".local/share/salience"}
    for named in (".local/share/salience/salience.toml", "alias/x", str(home)):
        with pytest.raises(PathRefused, match="runtime"), locate(workspace, named):
            pass


def test_a_missing_root_is_named(root: Path) -> None:
    workspace = Workspace.at(str(root))
    root.rename(root.parent / "elsewhere")
    with pytest.raises(WorkspaceGone), locate(workspace, "x"):
        pass
    with pytest.raises(WorkspaceGone):
        Workspace.at(str(root))


def test_a_link_swapped_after_the_judgement_does_not_move_the_place(root: Path) -> None:
    with locate(Workspace.at(str(root)), "src/b.py") as spot:
        (root / "src").rename(root / "moved")
        (root / "src").symlink_to("../ws-evil")
        replace(spot, b"b\n", tag="t")
    assert (root / "moved" / "b.py").read_bytes() == b"b\n"
    assert os.listdir(root.parent / "ws-evil") == ["secret"]


def test_a_race_of_swaps_never_reads_outside(root: Path) -> None:
    workspace = Workspace.at(str(root))
    (root / "inner").mkdir()
    (root / "inner" / "secret").write_text("mine\n")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "inner", root / "aside")
            os.symlink("../ws-evil", root / "inner")
            os.unlink(root / "inner")
            os.rename(root / "aside", root / "inner")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes] = set()
    try:
        for _ in range(3000):
            try:
                with locate(workspace, "inner/secret") as spot:
                    content = read(spot, limit=100)
                    seen.add(content.data if content else b"")
            except PathRefused:
                pass
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"mine\n", b""}
    assert len(os.listdir("/proc/self/fd")) < 100


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with locate(Workspace.at(str(root)), "src/up/src/a.py"):
            pass
        with pytest.raises(PathRefused), locate(Workspace.at(str(root)), "out/x"):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
