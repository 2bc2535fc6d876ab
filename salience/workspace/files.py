"""A file is replaced whole or not at all, and only a regular file is ever opened.

Everything goes through a `Spot`, so that the place that was judged is the place that is used (spec POL-3).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from salience.model.canonical import digest
from salience.workspace.paths import SCRATCH_PREFIX, PathRefused, Spot

_NEW_FILE_MODE = 0o666
_NEW_FOLDER_MODE = 0o777


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a file, their sha256 and its permission bits."""

    data: bytes
    sha256: str
    mode: int


def read(spot: Spot, *, limit: int) -> Content | None:
    """What is in the file, or None when nothing is there.

    Args:
        spot: the place.
        limit: most bytes that are read; a larger file is refused.

    Raises:
        PathRefused: it is no regular file, is too large, or may not be read.
    """
    if spot.missing or spot.status is None:
        return None
    if not stat.S_ISREG(spot.status.st_mode):
        what = "a folder" if spot.is_folder else "no regular file"
        raise PathRefused(f"{spot.path!r} is {what}")
    try:
        # Without O_NONBLOCK, a FIFO that took the file's place since would hang the worker.
        descriptor = os.open(spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=spot.folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PathRefused(f"{spot.path!r} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PathRefused(f"{spot.path!r} is no regular file")
        # A file that is too large is not read to find that out; one that grows meanwhile is.
        data = file.read(limit + 1) if status.st_size <= limit else b""
    if max(status.st_size, len(data)) > limit:
        raise PathRefused(f"{spot.path!r} has {max(status.st_size, len(data))} bytes; {limit} is the most")
    return Content(data, digest(data), stat.S_IMODE(status.st_mode))


def replace(spot: Spot, data: bytes, *, tag: str) -> None:
    """Put bytes in the place of a file, making it and its folders when they are not there; mode and owner stay.

    A crash leaves the old file or the new one.

    Args:
        spot: the place.
        data: the new content.
        tag: names the file that is written beside it; a call uses its own, so that its retry clears what a crash left.

    Raises:
        PathRefused: the folder may not be written, or a folder stands there.
    """
    scratch = f"{SCRATCH_PREFIX}{tag}"
    made: list[int] = []
    try:
        folder = spot.folder
        for name in spot.missing:
            with suppress(FileExistsError):
                os.mkdir(name, _NEW_FOLDER_MODE, dir_fd=folder)
            folder = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY, dir_fd=folder)
            made.append(folder)
        with suppress(FileNotFoundError):
            os.unlink(scratch, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(scratch, flags, _NEW_FILE_MODE, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if spot.status is not None:
                    # Only a privileged worker may give a file away; any other already owns what it writes.
                    with suppress(PermissionError):
                        os.fchown(descriptor, spot.status.st_uid, spot.status.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(spot.status.st_mode))
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.rename(scratch, spot.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(scratch, dir_fd=folder)
            raise
        os.fsync(folder)
    except OSError as error:
        raise PathRefused(f"{spot.path!r} cannot be written: {error.strerror}") from error
    finally:
        for opened in made:
            os.close(opened)
