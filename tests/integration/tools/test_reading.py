"""Tools that read: what they show is numbered, ordered, bounded, and the same every time."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest

from tests.integration.tools.scene import Scene


async def test_read_file_shows_lines_and_the_hash(scene: Scene) -> None:
    (scene.root / "a.txt").write_text("one\ntwo\nthree\n")
    found = sha256(b"one\ntwo\nthree\n").hexdigest()
    outcome = await scene.run("read_file", {"path": "a.txt", "start_line": 2})
    assert await scene.seen(outcome) == (
        f"a.txt (lines 2-3 of 3, 14 bytes, sha256 {found[:16]})\n2\ttwo\n3\tthree\n"
    )  # fmt: skip
    assert [(e.op, e.path, e.after_hash) for e in outcome.effects] == [("read", "a.txt", found)]
    assert await scene.claimed() is None


async def test_read_file_comes_in_parts_that_join(scene: Scene) -> None:
    scene.max_bytes = 2_000
    (scene.root / "long.txt").write_text("".join(f"line number {n}\n" for n in range(1, 501)))
    start = 1
    lines: list[str] = []
    while True:
        outcome = await scene.run("read_file", {"path": "long.txt", "start_line": start})
        text = await scene.seen(outcome)
        assert len(text.encode()) <= 2_000
        lines += [line.split("\t")[1] for line in text.splitlines() if "\t" in line]
        if not outcome.truncated:
            break
        start = int(text.rstrip().rstrip("]").rsplit(" ", 1)[1])
    assert lines == [f"line number {n}" for n in range(1, 501)]


async def test_read_file_of_empty_crlf_latin1_and_long_lines(scene: Scene) -> None:
    (scene.root / "empty").write_bytes(b"")
    (scene.root / "crlf").write_bytes(b"a\r\nb\r\n")
    (scene.root / "latin1").write_bytes("grüße\n".encode("latin-1"))
    (scene.root / "wide").write_text("x" * 5_000)
    assert "(empty, 0 bytes" in await scene.seen(await scene.run("read_file", {"path": "empty"}))
    assert "CRLF line ends)\n1\ta\n2\tb\n" in await scene.seen(await scene.run("read_file", {"path": "crlf"}))
    latin1 = await scene.run("read_file", {"path": "latin1"})
    assert "gr��e" in await scene.seen(latin1)
    assert latin1.full_ref is not None
    assert await scene.blobs.get(latin1.full_ref) == "grüße\n".encode("latin-1")
    assert "3000 more bytes in this line" in await scene.seen(await scene.run("read_file", {"path": "wide"}))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"path": "absent"}, "there is no file absent"),
        ({"path": "folder"}, "list_files"),
        ({"path": "binary"}, "binary file of 4 bytes"),
        ({"path": "fifo"}, "no regular file"),
        ({"path": "../x"}, "outside the workspace"),
        ({"path": "link"}, "outside the workspace"),
        ({"path": "a.txt", "start_line": 9}, "has 1 lines"),
    ],
)
async def test_read_file_refuses_with_what_to_do(scene: Scene, args: dict[str, object], words: str) -> None:
    (scene.root / "a.txt").write_text("a\n")
    (scene.root / "folder").mkdir()
    (scene.root / "binary").write_bytes(b"\x7fEL\x00")
    os.mkfifo(scene.root / "fifo")
    (scene.root / "link").symlink_to("/etc/passwd")
    outcome = await scene.run("read_file", args)
    assert (outcome.ok, outcome.kind) == (False, "error")
    assert words in await scene.seen(outcome)


async def test_list_files_is_sorted_and_leaves_out_what_git_ignores(scene: Scene) -> None:
    for path in ("b/z.py", "b/a.py", "a.txt", ".hidden", "build/out", ".git/HEAD"):
        (scene.root / path).parent.mkdir(exist_ok=True)
        (scene.root / path).write_text("x")
    (scene.root / ".gitignore").write_text("build/\n")
    (scene.root / "out").symlink_to("/etc")
    assert await scene.seen(await scene.run("list_files", {})) == ".gitignore\n.hidden\na.txt\nb/a.py\nb/z.py\n"
    assert await scene.seen(await scene.run("list_files", {"glob": "**/*.py", "path": "b"})) == "b/a.py\nb/z.py\n"
    assert "build/out" in await scene.seen(await scene.run("list_files", {"ignored": True}))
    first = await scene.run("list_files", {"limit": 2})
    assert first.truncated
    assert (await scene.seen(first)).endswith(".hidden\n[the first 2 files; list a folder below or raise limit]\n")
    assert await scene.seen(await scene.run("list_files", {"glob": "*.rs"})) == "no files in . match\n"


async def test_search_finds_lines_in_order(scene: Scene) -> None:
    (scene.root / "b.py").write_text("x = 1\nneedle()\n")
    (scene.root / "a.py").write_text("needle\nNeedle\n")
    (scene.root / "data.bin").write_bytes(b"\x00needle")
    assert await scene.seen(await scene.run("search", {"pattern": "needle"})) == "a.py:1:needle\nb.py:2:needle()\n"
    loud = await scene.run("search", {"pattern": "NEEDLE", "case_sensitive": False, "path": "a.py"})
    assert await scene.seen(loud) == "a.py:1:needle\na.py:2:Needle\n"
    assert await scene.seen(await scene.run("search", {"pattern": "needle(", "literal": True})) == "b.py:2:needle()\n"
    assert await scene.seen(await scene.run("search", {"pattern": "nothing here"})) == "no line matches in .\n"
    assert (await scene.run("search", {"pattern": "e", "limit": 1})).truncated


async def test_search_ends_when_it_has_enough(scene: Scene) -> None:
    (scene.root / "long").write_text("needle in a long line of hay\n" * 500_000)
    outcome = await scene.run("search", {"pattern": "needle", "limit": 2})
    assert (await scene.seen(outcome)).count("\n") == 3


async def test_search_takes_no_options_from_what_it_is_given(scene: Scene) -> None:
    (scene.root / "a").write_text("--files\n--pre=touch\n")
    assert await scene.seen(await scene.run("search", {"pattern": "--files"})) == "a:1:--files\n"
    outcome = await scene.run("search", {"pattern": "x", "glob": "--pre=touch /tmp/x"})
    assert outcome.ok


async def test_search_with_a_wrong_pattern_says_so(scene: Scene) -> None:
    (scene.root / "a").write_text("a")
    outcome = await scene.run("search", {"pattern": "(unclosed"})
    assert outcome.kind == "invalid_arguments"
    assert "unclosed group" in await scene.seen(outcome)


async def test_search_does_not_follow_links_out(scene: Scene) -> None:
    (scene.root / "etc").symlink_to("/etc")
    (scene.root / "passwd").symlink_to("/etc/passwd")
    assert await scene.seen(await scene.run("search", {"pattern": "root"})) == "no line matches in .\n"
    assert "outside" in await scene.seen(await scene.run("search", {"pattern": "root", "path": "etc"}))
