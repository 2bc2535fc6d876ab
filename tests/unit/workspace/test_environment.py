"""Project instructions are the chain of AGENTS.md from the repository's root down, bounded, and from inside it (CTX-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from salience.model.canonical import digest
from salience.workspace.environment import Surroundings, look_around


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with instructions in its root and two folders down."""
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "pkg" / "mod").mkdir(parents=True)
    (root / "AGENTS.md").write_text("root rules\n")
    (root / "pkg" / "mod" / "AGENTS.md").write_text("mod rules\n")
    (tmp_path / "AGENTS.md").write_text("above the root\n")
    (root / "other").mkdir()
    (root / "other" / "AGENTS.md").write_text("beside the way\n")
    return root


def around(cwd: Path, limit: int = 32_768) -> Surroundings:
    return look_around(str(cwd), None, limit)


def told(found: Surroundings) -> list[tuple[str, str]]:
    return [(file.path, found.texts[file.digest].decode()) for file in found.environment.instructions]


def test_the_chain_goes_from_the_root_down_to_the_workspace(repo: Path) -> None:
    found = around(repo / "pkg" / "mod")
    assert told(found) == [("AGENTS.md", "root rules\n"), ("pkg/mod/AGENTS.md", "mod rules\n")]
    first = found.environment.instructions[0]
    assert (first.digest, first.size_bytes, first.truncated) == (digest(b"root rules\n"), 11, False)
    (repo / "pkg" / "CLAUDE.md").write_text("pkg rules\n")
    (repo / "CLAUDE.md").write_text("not read beside AGENTS.md\n")
    assert [path for path, _ in told(around(repo / "pkg" / "mod"))] == [
        "AGENTS.md", "pkg/CLAUDE.md", "pkg/mod/AGENTS.md",
    ]  # fmt: skip
    assert [path for path, _ in told(around(repo))] == ["AGENTS.md"]


def test_a_changed_file_is_another_environment(repo: Path) -> None:
    before = around(repo).environment
    assert around(repo).environment == before
    (repo / "AGENTS.md").write_text("ROOT rules\n")
    assert around(repo).environment.instructions != before.instructions


def test_the_chain_is_bounded_and_says_what_was_cut(repo: Path) -> None:
    (repo / "AGENTS.md").write_bytes(b"r" * 100_000)
    found = around(repo / "pkg" / "mod", 1_000)
    assert [(file.size_bytes, file.truncated) for file in found.environment.instructions] == [(1_000, True), (0, True)]
    assert sum(map(len, found.texts.values())) == 1_000


@pytest.mark.parametrize("how", ["file", "above", "chain"])
def test_a_link_out_of_the_workspace_is_not_read(repo: Path, tmp_path: Path, how: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "AGENTS.md").write_text("a secret\n")
    place = repo / "pkg" / "AGENTS.md"
    match how:
        case "file":
            place.symlink_to(outside / "AGENTS.md")
        case "chain":
            (repo / "step").symlink_to(outside)
            place.symlink_to("../step/AGENTS.md")
        case _:
            place.symlink_to("../../AGENTS.md")
    found = around(repo / "pkg" / "mod")
    assert [path for path, _ in told(found)] == ["AGENTS.md", "pkg/AGENTS.md", "pkg/mod/AGENTS.md"]
    assert told(found)[1][1] == "(not read: this file is a link that leads out of the workspace)\n"
    assert not [text for text in found.texts.values() if b"secret" in text or b"above" in text]


def test_a_link_inside_is_read_and_no_pipe_is_waited_for(repo: Path) -> None:
    (repo / "pkg" / "AGENTS.md").symlink_to("../other/AGENTS.md")
    (repo / "pkg" / "mod" / "AGENTS.md").unlink()
    os.mkfifo(repo / "pkg" / "mod" / "AGENTS.md")
    assert told(around(repo / "pkg" / "mod")) == [("AGENTS.md", "root rules\n"), ("pkg/AGENTS.md", "beside the way\n")]


def test_a_workspace_behind_a_link_keeps_its_own_instructions(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "behind" / "AGENTS.md").write_text("its own\n")
    (repo / "linked").symlink_to(tmp_path / "behind")
    assert told(around(repo / "linked"))[-1] == ("linked/AGENTS.md", "its own\n")


def test_no_repository_means_the_workspace_alone(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "AGENTS.md").write_text("above\n")
    (tmp_path / "a" / "b" / "AGENTS.md").write_text("here\n")
    assert told(around(tmp_path / "a" / "b")) == [("AGENTS.md", "here\n")]
