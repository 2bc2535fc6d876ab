"""What the agent's surroundings are, read from the machine and recorded by content (spec CTX-1, CTX-5)."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from salience.model import text
from salience.model.canonical import digest
from salience.model.environment import Environment, InstructionFile

INSTRUCTION_NAMES = ("AGENTS.md", "CLAUDE.md")
"""In this order; the first that a folder has is read."""
MAX_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Surroundings:
    """An environment, and the texts it names by digest."""

    environment: Environment
    texts: dict[str, bytes]


def find_repo_root(cwd: Path) -> Path | None:
    """The nearest folder at or above `cwd` that holds `.git`."""
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists():
            return folder
    return None


def vcs_head(repo_root: Path | None) -> str | None:
    """The commit or branch that is checked out, read from `.git` without running git; None when there is none."""
    if repo_root is None:
        return None
    git = repo_root / ".git"
    try:
        if git.is_file():  # a worktree: the file names the real folder
            git = (repo_root / git.read_text()[:MAX_HEAD_BYTES].removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text()[:MAX_HEAD_BYTES].strip()
        if not head.startswith("ref:"):
            return head[:40]
        ref = head.removeprefix("ref:").strip()
        branch = ref.removeprefix("refs/heads/")
        loose = git / ref
        if loose.is_file():
            return f"{branch}@{loose.read_text()[:40]}"
        return branch
    except (OSError, UnicodeDecodeError):
        return None


def instruction_paths(cwd: Path, root: Path | None) -> list[Path]:
    """The instruction files that hold for `cwd`, from the repository's root down to it."""
    folders = [cwd]
    if root is not None and root != cwd and root in cwd.parents:
        folders = [root, *reversed([f for f in cwd.parents if root in f.parents]), cwd]
    found: list[Path] = []
    for folder in folders:
        for name in INSTRUCTION_NAMES:
            if (folder / name).is_file():
                found.append(folder / name)
                break
    return found


def _read_inside(path: Path, roots: Sequence[Path | None], limit: int) -> bytes:
    """The beginning of an instruction file, which must lie in the repository or the workspace: its text gets a rank
    that no file from elsewhere on the machine may have (spec CTX-8, POL-3).

    Raises:
        OSError: it cannot be read.
    """
    # The place that is judged is the place that is read: the resolved path, whose last name may be no link any more.
    real = path.resolve(strict=True)
    if not any(root is not None and real.is_relative_to(root.resolve()) for root in roots):
        return b"(not read: this file is a link that leads out of the workspace)\n"[:limit]
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)


def look_around(cwd: str, repo_root: str | None, max_instruction_bytes: int) -> Surroundings:
    """Read the surroundings of a workspace.

    Args:
        cwd: absolute path of the workspace; it must exist.
        repo_root: the repository's root, or None to look for it.
        max_instruction_bytes: most bytes of instructions in all; what is beyond is left out and marked. A file that is a
            link out of repository and workspace is not read, and a line in its place says so.

    Returns:
        The environment, and the instruction texts by digest.

    Raises:
        FileNotFoundError: the workspace does not exist.
    """
    here = Path(cwd)
    os.stat(here)
    root = Path(repo_root) if repo_root else find_repo_root(here)
    left = max_instruction_bytes
    instructions: list[InstructionFile] = []
    texts: dict[str, bytes] = {}
    for path in instruction_paths(here, root):
        try:
            raw = _read_inside(path, (root, here), left + 1)
        except OSError:
            continue
        data = text.decode(raw[:left]).encode()
        name = str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name
        ref = digest(data)
        texts[ref] = data
        instructions.append(InstructionFile(path=name, digest=ref, size_bytes=len(data), truncated=len(raw) > left))
        left -= min(left, len(raw))
    environment = Environment(
        cwd=cwd,
        repo_root=str(root) if root else None,
        platform=f"{platform.system()} {platform.machine()}",
        vcs_head=vcs_head(root),
        instructions=tuple(instructions),
    )
    return Surroundings(environment, texts)
