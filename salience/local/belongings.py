"""A home is everything under it and the folder outside that it may need: copying or deleting it takes both."""

from __future__ import annotations

import shutil
from pathlib import Path

from salience.errors import UsageError
from salience.local.home import Home, unwritable
from salience.local.info import running
from salience.local.lock import HomeLock
from salience.local.placement import copy_tree, locate, settle

SETTINGS = "salience.toml"
OURS = frozenset(
    ("run", "logs", "temporal", "postgres", "blobs", "workspaces", "secrets.json", "elsewhere.json", ".salience-home")
)
"""What Salience writes into a folder that already held other things."""


def copy_home(source: Path, target: Path) -> None:
    """Copy a home that is down; the copy runs on its own data.

    Args:
        source: the home.
        target: where the copy goes; must not exist, or be empty.

    Raises:
        UsageError: the source is running or no home, or the target is taken.
        SalienceError: the copy failed.
    """
    old, new = Home(source), Home(target)
    if not old.passwords_file.exists():
        raise UsageError(f"{old.root} is no home of Salience", mend="name the folder that `salience doctor` shows")
    if new.root.exists() and any(new.root.iterdir()):
        raise UsageError(f"{new.root} is not empty", mend="name a new folder")
    lock = HomeLock(old.lock_file)
    old.run.mkdir(mode=0o700, exist_ok=True)
    if not lock.acquire():
        raise UsageError(f"the stack under {old.root} is running", mend="salience down")
    try:
        data = locate(old).data
        if new.root.exists():
            new.root.rmdir()
        new.root.parent.mkdir(parents=True, exist_ok=True)
        copy_tree(old.root, new.root)
        shutil.rmtree(new.run, ignore_errors=True)
        new.elsewhere_file.unlink(missing_ok=True)
        if data.exists() and not data.is_relative_to(old.root):
            new.postgres.mkdir(mode=0o700, exist_ok=True)
            copy_tree(data, new.postgres / "data")
        # Brings the data to where the copy's Postgres can reach them.
        settle(new, locate(new))
    except OSError as error:
        raise unwritable(new.root, error) from error
    finally:
        lock.release()


def purge(home: Path) -> list[Path]:
    """Delete the data of a home that is down; settings stay, and so does what was in the folder before Salience.

    Args:
        home: its home.

    Returns:
        What was deleted.

    Raises:
        UsageError: its stack is running.
        SalienceError: something cannot be deleted.
    """
    place = Home(home)
    if running(place.root):
        raise UsageError(f"the stack under {place.root} is running", mend="salience down")
    gone: list[Path] = []
    try:
        record = place.elsewhere()
        if record and Path(record.home) == place.root and Path(record.folder).exists():
            shutil.rmtree(record.folder)
            gone.append(Path(record.folder))
        wholly = place.mark.exists()
        for entry in sorted(place.root.iterdir()) if place.root.exists() else []:
            if entry.name == SETTINGS or not (wholly or entry.name in OURS):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
            gone.append(entry)
        if place.root.exists() and not any(place.root.iterdir()):
            place.root.rmdir()
            gone = [each for each in gone if each.parent != place.root] + [place.root]
    except OSError as error:
        raise unwritable(place.root, error) from error
    return gone
