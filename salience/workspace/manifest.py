"""A manifest states every file of a workspace — path, mode, size, sha256 — so that two of them tell what happened.

It sees files, symbolic links (as links, never followed) and special files (never opened); folders only through what
they hold, as git does. `.git` folders, the runtime's own folders and files being written are left out. A file whose
stat did not change since it was hashed is not read again, unless it was hashed so soon after a change that another
change could have left the same times (git calls that racy).
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

from salience.model.canonical import canonical_json, digest
from salience.model.tool import FileEffect
from salience.workspace.paths import SCRATCH_PREFIX, Workspace, WorkspaceGone, shown

MAX_ENTRIES = 200_000
MAX_DEPTH = 128
"""Each level holds a descriptor open while it is walked."""
MAX_HASHED_BYTES = 256 * 1024 * 1024
"""A larger file is told by size and modification time alone; hashing it would hold up every command."""
KEPT_FILE_BYTES = 256 * 1024
KEPT_FILES = 2_000
KEPT_TOTAL_BYTES = 32 * 1024 * 1024
"""Text files read for the first time are handed out up to these bounds, so that a later change has a before-image."""
_RACY_NS = 10_000_000
_KNOWN_ROOTS = 16
_SNIFF_BYTES = 8192

EntryKind = Literal["file", "link", "special", "unreadable"]


class Entry(NamedTuple):
    """One path. `sha256` is of the content or of a link's target; `stamp` is the mtime in ns of what was not hashed."""

    path: str
    kind: EntryKind
    mode: int
    size: int
    sha256: str | None
    stamp: int | None = None


@dataclass(frozen=True)
class Manifest:
    """All entries in the order of their paths. `cut` is the first path that was left out, when there were too many."""

    entries: tuple[Entry, ...]
    cut: str | None = None

    @cached_property
    def encoded(self) -> bytes:
        """The one byte form, as it is stored."""
        return canonical_json({"version": 1, "cut": self.cut, "entries": self.entries})

    @cached_property
    def ref(self) -> str:
        """Digest of the byte form."""
        return digest(self.encoded)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The manifest from its byte form."""
        value = json.loads(data)
        return cls(tuple(Entry(*entry) for entry in value["entries"]), value["cut"])


EMPTY = Manifest(())


class Change(NamedTuple):
    """A path that differs between two manifests."""

    path: str
    before: Entry | None
    after: Entry | None

    def effect(self) -> FileEffect:
        """The change as a call declares it."""
        op = "created" if self.before is None else "deleted" if self.after is None else "modified"
        return FileEffect(
            op=op,
            path=self.path,
            before_hash=self.before.sha256 if self.before else None,
            after_hash=self.after.sha256 if self.after else None,
            size_bytes=self.after.size if self.after else None,
        )


def changes(before: Manifest, after: Manifest) -> tuple[Change, ...]:
    """What differs, in the order of paths; a mode alone counts. Where one was cut, only what both saw is judged."""
    if before is after:
        return ()
    old = {entry.path: entry for entry in before.entries}
    new = {entry.path: entry for entry in after.entries}
    cuts = [cut.split("/") for cut in (before.cut, after.cut) if cut is not None]
    found: list[Change] = []
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was != now and all(path.split("/") < cut for cut in cuts):
            found.append(Change(path, was, now))
    return tuple(found)


class Taken(NamedTuple):
    """A manifest, and the text files that were read for it, by hash."""

    manifest: Manifest
    contents: dict[str, bytes]


_Key = tuple[int, int, int, int, int, int]


def _key(status: os.stat_result) -> _Key:
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip


class _Full(Exception):
    """There are more entries than a manifest holds."""


@dataclass
class _Known:
    """What this process hashed in one workspace."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    hashed: dict[str, tuple[_Key, Entry]] = field(default_factory=dict[str, tuple[_Key, Entry]])
    last: Manifest = EMPTY


_known: OrderedDict[Path, _Known] = OrderedDict()
_known_lock = threading.Lock()


def take(workspace: Workspace) -> Taken:
    """The manifest of a workspace as it is now. Blocks: call it in a thread.

    Returns:
        The manifest — the same object as last time when nothing changed — and the contents newly read.

    Raises:
        WorkspaceGone: the root is not there.
    """
    with _known_lock:
        known = _known.setdefault(workspace.root, _Known())
        _known.move_to_end(workspace.root)
        while len(_known) > _KNOWN_ROOTS:
            _known.popitem(last=False)
    with known.lock:
        walk = _Walk(workspace, known.hashed)
        walk.run()
        known.hashed = walk.hashed
        entries = tuple(sorted(walk.found))
        if entries != known.last.entries or walk.cut != known.last.cut:
            known.last = Manifest(entries, walk.cut)
        return Taken(known.last, walk.contents)


class _Walk:
    """One pass over a workspace."""

    def __init__(self, workspace: Workspace, known: dict[str, tuple[_Key, Entry]]) -> None:
        self._workspace = workspace
        self._known = known
        self._kept_bytes = 0
        self.found: list[Entry] = []
        self.hashed: dict[str, tuple[_Key, Entry]] = {}
        self.contents: dict[str, bytes] = {}
        self.cut: str | None = None

    def run(self) -> None:
        try:
            root = os.open(self._workspace.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            gone = f"the workspace {self._workspace.root} does not exist any more"
            raise WorkspaceGone(gone, mend="restore the folder and resume") from None
        with suppress(_Full):
            self._folder(root, "", 0)

    def _folder(self, descriptor: int, prefix: str, depth: int) -> None:
        try:
            with os.scandir(descriptor) as listing:
                inside = sorted(listing, key=attrgetter("name"))
            for entry in inside:
                self._entry(descriptor, prefix + entry.name, entry, depth)
        finally:
            os.close(descriptor)

    def _entry(self, folder: int, path: str, entry: os.DirEntry[str], depth: int) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # gone since it was listed
        if stat.S_ISDIR(status.st_mode):
            if entry.name != ".git" and path not in self._workspace.hidden:
                self._enter(folder, entry.name, path, status, depth)
            return
        key = _key(status)
        known = self._known.get(path)
        if known is not None and known[0] == key:
            self.hashed[path] = known
            self._add(known[1])
        elif not entry.name.startswith(SCRATCH_PREFIX):
            self._add(self._fresh(folder, entry.name, path, status, key))

    def _add(self, entry: Entry) -> None:
        if len(self.found) == MAX_ENTRIES:
            self.cut = entry.path
            raise _Full
        self.found.append(entry)

    def _enter(self, folder: int, name: str, path: str, status: os.stat_result, depth: int) -> None:
        try:
            if depth == MAX_DEPTH:
                raise OSError
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            self._add(Entry(shown(path), "unreadable", stat.S_IMODE(status.st_mode), 0, None, status.st_mtime_ns))
            return
        self._folder(inner, path + "/", depth + 1)

    def _fresh(self, folder: int, name: str, path: str, status: os.stat_result, key: _Key) -> Entry:
        mode = stat.S_IMODE(status.st_mode)
        label = shown(path)
        if stat.S_ISLNK(status.st_mode):
            try:
                target = os.fsencode(os.readlink(name, dir_fd=folder))
            except OSError:
                return Entry(label, "unreadable", mode, 0, None, status.st_mtime_ns)
            return Entry(label, "link", mode, len(target), digest(target))
        if not stat.S_ISREG(status.st_mode):
            return Entry(label, "special", mode, 0, None)
        if status.st_size > MAX_HASHED_BYTES:
            return Entry(label, "file", mode, status.st_size, None, status.st_mtime_ns)
        started = time.time_ns()
        try:
            hashed = self._hash(folder, name, key)
        except OSError:
            return Entry(label, "unreadable", mode, status.st_size, None, status.st_mtime_ns)
        entry = Entry(label, "file", mode, hashed.size, hashed.sha256)
        if hashed.steady and started - max(status.st_mtime_ns, status.st_ctime_ns) > _RACY_NS:
            self.hashed[path] = (key, entry)
        return entry

    def _hash(self, folder: int, name: str, key: _Key) -> _Hashed:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{name} is no regular file any more")
            hasher, size, first = sha256(), 0, b""
            while chunk := file.read(1024 * 1024):
                hasher.update(chunk)
                first = first or chunk
                size += len(chunk)
            now = os.fstat(descriptor)
        found = hasher.hexdigest()
        if size <= KEPT_FILE_BYTES and size == len(first):
            self._keep(found, first)
        return _Hashed(found, size, _key(now) == key)

    def _keep(self, found: str, data: bytes) -> None:
        fits = len(self.contents) < KEPT_FILES and self._kept_bytes + len(data) <= KEPT_TOTAL_BYTES
        if fits and found not in self.contents and b"\x00" not in data[:_SNIFF_BYTES]:
            self.contents[found] = data
            self._kept_bytes += len(data)


class _Hashed(NamedTuple):
    sha256: str
    size: int
    steady: bool
