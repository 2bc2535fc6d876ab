"""Two manifests tell what happened between, whatever did it; nothing outside is followed and nothing special opened."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salience.workspace import manifest
from salience.workspace.manifest import EMPTY, Manifest, changes, take
from salience.workspace.paths import Workspace, WorkspaceGone


def settle() -> None:
    """Let the times of what was just written become old enough to be trusted."""
    time.sleep(0.02)


def ops(before: Manifest, after: Manifest) -> list[tuple[str, str]]:
    return [(change.effect().op, change.path) for change in changes(before, after)]


def test_states_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    (tmp_path / ".salience-tmp").write_text("half")
    (tmp_path / "out").symlink_to("/etc")
    os.close(os.open(os.fsencode(tmp_path) + b"/bad\xff", os.O_CREAT))
    taken = take(Workspace.at(str(tmp_path)))
    kinds = {entry.path: entry.kind for entry in taken.manifest.entries}
    assert kinds == {"a.txt": "file", "bad\\xff": "file", "fifo": "special", "link": "link", "out": "link"}
    assert taken.manifest.entries[0].sha256 == sha256(b"a").hexdigest()
    assert set(taken.contents.values()) == {b"a", b""}


def test_decodes_to_itself(tmp_path: Path) -> None:
    (tmp_path / "ä b.txt").write_text("a")
    found = take(Workspace.at(str(tmp_path))).manifest
    assert Manifest.decode(found.encoded) == found
    assert Manifest.decode(found.encoded).ref == found.ref


def test_unchanged_is_the_same_object_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    settle()
    workspace = Workspace.at(str(tmp_path))
    first = take(workspace)
    monkeypatch.setattr(manifest, "sha256", None)
    second = take(workspace)
    assert second.manifest is first.manifest
    assert second.contents == {}


def test_a_change_that_keeps_size_and_times_is_seen(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("aaaa")
    settle()
    workspace = Workspace.at(str(tmp_path))
    before = take(workspace).manifest
    times = target.stat()
    target.write_text("bbbb")
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert ops(before, take(workspace).manifest) == [("modified", "a.txt")]


def test_a_racy_change_is_seen(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    workspace = Workspace.at(str(tmp_path))
    for number in range(200):
        text = f"{number:04}"
        target.write_text(text)
        assert take(workspace).manifest.entries[0].sha256 == sha256(text.encode()).hexdigest()


def test_mode_kind_and_place_are_changes(tmp_path: Path) -> None:
    for name in ("mode", "kind", "old", "gone"):
        (tmp_path / name).write_text(name)
    workspace = Workspace.at(str(tmp_path))
    before = take(workspace).manifest
    (tmp_path / "mode").chmod(0o700)
    (tmp_path / "kind").unlink()
    (tmp_path / "kind").symlink_to("mode")
    (tmp_path / "sub").mkdir()
    (tmp_path / "old").rename(tmp_path / "sub" / "new")
    (tmp_path / "gone").unlink()
    after = take(workspace).manifest
    assert ops(before, after) == [
        ("deleted", "gone"), ("modified", "kind"), ("modified", "mode"), ("deleted", "old"), ("created", "sub/new"),
    ]  # fmt: skip


def test_what_was_cut_is_not_called_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 3)
    for name in "bcd":
        (tmp_path / name).write_text(name)
    workspace = Workspace.at(str(tmp_path))
    before = take(workspace).manifest
    (tmp_path / "a").write_text("a")
    after = take(workspace).manifest
    assert after.cut == "d"
    assert ops(before, after) == [("created", "a")]


def test_hidden_folders_are_not_seen(tmp_path: Path) -> None:
    home = tmp_path / "share" / "salience"
    home.mkdir(parents=True)
    (home / "blob").write_text("b")
    assert take(Workspace.at(str(tmp_path), runtime=(home,))).manifest == EMPTY


def test_a_deep_tree_is_bounded(tmp_path: Path) -> None:
    here = tmp_path
    for _ in range(140):
        here = here / "d"
        here.mkdir()
    (here / "f").write_text("f")
    [entry] = take(Workspace.at(str(tmp_path))).manifest.entries
    assert entry.kind == "unreadable"


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    workspace = Workspace.at(str(tmp_path))
    tmp_path.rmdir()
    with pytest.raises(WorkspaceGone):
        take(workspace)


trees = st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e f"]), st.binary(max_size=3), max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=trees, new=trees)
def test_changes_turn_the_one_tree_into_the_other(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, bytes], new: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    workspace = Workspace.at(str(root))
    write(root, old)
    before = take(workspace).manifest
    for path in old.keys() - new.keys():
        (root / path).unlink()
    write(root, new)
    after = take(workspace).manifest
    expected = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    assert {change.path for change in changes(before, after)} == expected
    for change in changes(before, after):
        assert change.effect().after_hash == (sha256(new[change.path]).hexdigest() if change.path in new else None)
        assert change.effect().before_hash == (sha256(old[change.path]).hexdigest() if change.path in old else None)


def write(root: Path, tree: dict[str, bytes]) -> None:
    for path, data in tree.items():
        target = root / path
        target.parent.mkdir(exist_ok=True)
        if not target.exists() or target.read_bytes() != data:
            target.write_bytes(data)
