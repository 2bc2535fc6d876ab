"""The home is the one folder that holds a stack's state; nothing in it names an absolute path of its own.

So a home that is down can be copied or moved with everything in it. What cannot lie inside (see `placement`) is
recorded in `elsewhere.json` together with the home it belongs to, so that a copy is recognised and never uses the
original's data.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from salience.errors import SalienceError

FRESH_BYTES = 256 * 1024 * 1024
"""Free space for a first start: a new Postgres takes 40 MB and its write-ahead log grows to 128 MB."""

AGAIN_BYTES = 48 * 1024 * 1024
"""Free space for any later start: Postgres needs three write-ahead segments of 16 MB to recover from a crash."""


@dataclass(frozen=True)
class Passwords:
    """The passwords of the three database roles."""

    superuser: str
    owner: str
    runtime: str


@dataclass(frozen=True)
class Elsewhere:
    """What of a home lies outside it.

    Attributes:
        home: the home this belongs to, as it was when written.
        folder: the folder outside.
        data: True when Postgres' data is there, False when only a copy of its programs is.
    """

    home: str
    folder: str
    data: bool


class Home:
    """The paths of one home.

    Args:
        root: the folder, which need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.key = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        self.run = self.root / "run"
        self.logs = self.root / "logs"
        self.temporal = self.root / "temporal"
        self.postgres = self.root / "postgres"
        self.stack_file = self.run / "stack.json"
        self.lock_file = self.run / "lock"
        self.worker_ready = self.ready_file("all")
        self.passwords_file = self.root / "secrets.json"
        self.elsewhere_file = self.root / "elsewhere.json"
        self.mark = self.root / ".salience-home"

    def ready_file(self, role: str) -> Path:
        """What a worker of a role writes its pid into when it is past its start, and removes when it ends."""
        return self.run / ("worker.ready" if role == "all" else f"worker.{role}.ready")

    def make(self) -> None:
        """Create the folders.

        Raises:
            SalienceError: the place cannot be written, or is nearly full.
        """
        try:
            fresh = not self.root.exists() or not any(self.root.iterdir())
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fresh:
                # Only a folder that was ours from the start may be deleted as a whole later on.
                self.mark.touch()
            for folder in (self.run, self.logs, self.temporal):
                folder.mkdir(mode=0o700, exist_ok=True)
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            raise unwritable(self.root, error) from error
        needed = AGAIN_BYTES if self.passwords_file.exists() else FRESH_BYTES
        if free < needed:
            raise SalienceError(
                f"only {free // 2**20} MB are free under {self.root}, {needed // 2**20} MB are needed",
                mend="free some space or point SALIENCE_HOME to another disk",
            )

    def passwords(self) -> Passwords:
        """The passwords of the database roles, made at first use.

        Raises:
            SalienceError: the file is damaged, or cannot be written.
        """
        try:
            return Passwords(**json.loads(self.passwords_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            made = Passwords(*(secrets.token_urlsafe(24) for _ in range(3)))
            write_private(self.passwords_file, json.dumps(asdict(made)))
            return made
        except (ValueError, TypeError) as error:
            raise SalienceError(f"{self.passwords_file} is damaged", mend="restore it from a backup") from error

    def elsewhere(self) -> Elsewhere | None:
        """What of this home (or of the one it was copied from) lies outside it."""
        try:
            return Elsewhere(**json.loads(self.elsewhere_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise SalienceError(f"{self.elsewhere_file} is damaged", mend="restore it from a backup") from error


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only: a reader sees the old text or the new, never half of one.

    Raises:
        SalienceError: the place cannot be written.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> SalienceError:
    """The error for a place that cannot be written, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SalienceError(f"the disk under {path} is full", mend="free some space or point SALIENCE_HOME elsewhere")
    reason = error.strerror or str(error)
    return SalienceError(f"cannot write {path}: {reason}", mend="point SALIENCE_HOME to a folder you may write")
