"""A diff says what changed: applied to the old text it gives the new one, and it costs little however long they are."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.workspace.diff import Pair, unified


def test_says_what_git_says() -> None:
    old = b"".join(b"line %d\n" % n for n in range(20))
    new = old.replace(b"line 3\n", b"LINE 3\n").replace(b"line 15\n", b"")
    diff = unified([Pair("f.txt", old, new)])
    assert (diff.added, diff.removed) == (1, 2)
    assert diff.text == (
        "--- a/f.txt\n+++ b/f.txt\n@@ -1,7 +1,7 @@\n line 0\n line 1\n line 2\n"
        "-line 3\n+LINE 3\n line 4\n line 5\n line 6\n"
        "@@ -13,7 +13,6 @@\n line 12\n line 13\n line 14\n-line 15\n line 16\n line 17\n line 18\n"
    )


def test_creation_deletion_binary_and_missing_newline() -> None:
    diff = unified(
        [Pair("n", None, b"a\nb"), Pair("o", b"x\n", None), Pair("p", b"\x00", b"\x01\x00"), Pair("q", b"", b"")]
    )
    assert diff.text == (
        "--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n"
        "--- a/o\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"
        "--- a/p\n+++ b/p\n(binary)\n"
    )
    assert (diff.added, diff.removed) == (2, 1)


@pytest.mark.parametrize("same", [True, False])
def test_long_files_take_little_time(same: bool) -> None:
    old = b"".join((b"same\n" if same else b"%d\n" % n) for n in range(200_000))
    started = time.monotonic()
    diff = unified([Pair("f", old, b"top\n" + old[: len(old) // 2] + b"mid\n" + old[len(old) // 2 :] + b"end\n")])
    assert time.monotonic() - started < 10
    assert diff.added - diff.removed == 3


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\x0c\n"]), max_size=30).map("".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@settings(max_examples=60, deadline=None)
@given(old=lines, new=lines, newline=st.booleans())
def test_applies(tmp_path_factory: pytest.TempPathFactory, old: str, new: str, newline: bool) -> None:
    if not newline:
        old, new = old + "x", new + "y"
    if not old or not new or old == new:
        return
    folder = tmp_path_factory.mktemp("apply")
    (folder / "f").write_text(old)
    patch = unified([Pair("f", old.encode(), new.encode())]).text
    done = subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=folder, input=patch.encode(), capture_output=True
    )
    assert done.returncode == 0, (done.stderr, patch)
    assert Path(folder / "f").read_text() == new
