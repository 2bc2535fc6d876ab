"""A path is resolved before it is judged, and used through the folder it was resolved in (spec POL-3).

Resolution walks one name at a time with `O_NOFOLLOW` from an open file descriptor of the workspace and follows symbolic
links itself. What it returns is the open folder and a last name, so that nothing that is renamed or linked afterwards
can move the place that was judged.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from salience.errors import SessionFailed, UsageError

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_LINKS = 40
"""As many links as Linux follows before it says ELOOP."""
SCRATCH_PREFIX = ".salience-"
"""Names with this beginning are files being written; they are no part of the workspace."""
_WALK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY


class PathRefused(UsageError):
    """The path does not name a place of the workspace: name one inside it, relative to its root."""


class WorkspaceGone(SessionFailed):
    """The folder of the session does not exist any more: restore it, then say something to the session."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder a session works in.

    Args:
        root: absolute path without symbolic links (`Workspace.at` resolves it).
        hidden: paths relative to the root that belong to the runtime itself — its stores, when they lie inside — and
            are neither shown, recorded nor reachable.
    """

    root: Path
    hidden: frozenset[str] = frozenset()

    @classmethod
    def at(cls, cwd: str, *, runtime: tuple[Path, ...] = ()) -> Workspace:
        """The workspace at a path, with those of the runtime's own folders hidden that lie in it.

        Raises:
            WorkspaceGone: there is no such folder.
        """
        root = Path(os.path.realpath(cwd))
        if not root.is_dir():
            raise WorkspaceGone(f"the workspace {cwd} does not exist any more", mend="restore the folder and resume")
        inside = (Path(os.path.realpath(folder)) for folder in runtime)
        return cls(root, frozenset(str(f.relative_to(root)) for f in inside if f.is_relative_to(root) and f != root))

    def hides(self, path: str) -> bool:
        """Whether a relative path belongs to the runtime."""
        return any(path == hidden or path.startswith(f"{hidden}/") for hidden in self.hidden)


@dataclass(frozen=True, slots=True)
class Spot:
    """A judged place: a name in an open folder. Valid inside the `with` that located it.

    Args:
        folder: descriptor of the folder that holds it; of the place itself, when `name` is ".".
        name: last name, which is no symbolic link; "." for a folder.
        path: the real path relative to the root, "." for the root.
        missing: names of folders that have to be made before `name` can be.
        status: its lstat, or None when nothing is there.
    """

    folder: int
    name: str
    path: str
    missing: tuple[str, ...] = ()
    status: os.stat_result | None = None

    @property
    def is_folder(self) -> bool:
        """Whether a folder is there."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


def shown(name: str) -> str:
    """A file name as text that can be stored: bytes that are no UTF-8 appear as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def locate(workspace: Workspace, named: str) -> Generator[Spot]:
    """Resolve a path a model named.

    Args:
        workspace: where it must lie.
        named: relative to the root, or absolute and inside it.

    Yields:
        The place, whether or not something is there.

    Raises:
        PathRefused: it is malformed, leaves the workspace, belongs to the runtime, or passes through a file.
        WorkspaceGone: the root is not there.
    """
    pending = deque(_parts(workspace, named))
    try:
        opened = [os.open(workspace.root, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)]
    except (FileNotFoundError, NotADirectoryError):
        gone = f"the workspace {workspace.root} does not exist any more"
        raise WorkspaceGone(gone, mend="restore the folder and resume") from None
    try:
        try:
            spot = _walk(workspace, named, pending, opened)
        except OSError as error:
            raise PathRefused(f"{named!r} cannot be looked up: {error.strerror}") from error
        if workspace.hides(spot.path):
            raise PathRefused(f"{named!r} belongs to the agent runtime", mend="name a path of the project")
        yield spot
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _walk(workspace: Workspace, named: str, pending: deque[str], opened: list[int]) -> Spot:
    names: list[str] = []
    links = 0
    while pending:
        name = pending.popleft()
        if name == "..":
            if not names:
                raise _outside(named)
            names.pop()
            os.close(opened.pop())
            continue
        try:
            status = os.lstat(name, dir_fd=opened[-1])
        except FileNotFoundError:
            return _absent(named, names, [name, *pending], opened[-1])
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise PathRefused(f"{named!r} passes through more than {MAX_LINKS} symbolic links")
            target = os.readlink(name, dir_fd=opened[-1])
            if target.startswith("/"):
                while names:
                    names.pop()
                    os.close(opened.pop())
            pending.extendleft(reversed(_parts(workspace, named, target)))
        elif stat.S_ISDIR(status.st_mode):
            opened.append(os.open(name, _WALK, dir_fd=opened[-1]))
            names.append(name)
        elif pending:
            raise PathRefused(f"{named!r} leads through {'/'.join([*names, name])!r}, which is a file and no folder")
        else:
            return Spot(opened[-1], name, "/".join([*names, name]), status=status)
    return Spot(opened[-1], ".", "/".join(names) or ".", status=os.fstat(opened[-1]))


def _absent(named: str, names: list[str], rest: list[str], folder: int) -> Spot:
    if ".." in rest:
        raise PathRefused(f"{named!r} goes up from {'/'.join([*names, rest[0]])!r}, which does not exist")
    return Spot(folder, rest[-1], "/".join([*names, *rest]), missing=tuple(rest[:-1]))


def _parts(workspace: Workspace, named: str, target: str | None = None) -> list[str]:
    """The names to walk; an absolute path must begin with the root."""
    path = named if target is None else target
    if not path or "\x00" in path:
        raise PathRefused(f"{named!r} is no path: it is empty or contains NUL")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise PathRefused("the path contains characters no file name can have") from None
    if len(encoded) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise PathRefused(
            f"the path is too long: {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} for each name, is the most"
        )
    if path.startswith("/"):
        root = str(workspace.root)
        if path != root and not path.startswith(root.rstrip("/") + "/"):
            raise _outside(named)
        path = path[len(root) :]
    return [part for part in path.split("/") if part not in ("", ".")]


def _outside(named: str) -> PathRefused:
    return PathRefused(f"{named!r} is outside the workspace", mend="name a path inside it, relative to its root")
