"""A disk runs full in mid-session: nothing acknowledged is lost, the session waits, and goes on when there is room (LOOP-3)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from salience.client import Salience
from salience.errors import BackendUnavailable
from salience.local import Stack, resolve
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.judge import judged
from tests.chaos.keeper import Keeper
from tests.chaos.play import FILES, TWELVE, Play, client_on
from tests.chaos.toll import Toll
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

FULL_S = 8.0
MEGABYTE = 1024 * 1024


class Disk:
    """A file system of its own in memory, which can be filled."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder], capture_output=True, check=False
        )
        if made.returncode:
            pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")

    def fill(self) -> None:
        """Leave not one byte."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (MEGABYTE, 4096, 1):
                try:
                    while filler.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Remove it, whoever still uses it."""
        subprocess.run(["umount", "--lazy", self.folder], capture_output=True, check=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that Postgres' account can reach."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    made = Path(tempfile.mkdtemp(prefix="salience-full-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def _began(salience: Salience, session_id: str) -> bool:
    try:
        position = await salience.journal.position(session_id)
    except BackendUnavailable:
        return False
    return position is not None and position.seq > 12


async def _told(salience: Salience, session_id: str, message_id: str) -> str:
    """Say something until it is acknowledged; returns its id."""
    while True:
        try:
            return (await salience.say(session_id, f"words of {message_id}.", message_id=message_id)).message_id
        except BackendUnavailable:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize("where", ["blobs", "home"])
async def test_a_session_waits_for_room(where: str, folder: Path, tmp_path: Path, toll: Toll, say: Say) -> None:
    # The home holds everything: Temporal's file, Postgres' data and write-ahead log, blobs, logs.
    disk = Disk(folder, (64 if where == "blobs" else 400) * MEGABYTE)
    home = tmp_path / "home" if where == "blobs" else folder / "home"
    # What is said may come when the last turn is already taken; the model then says once more that it is done.
    play = Play(
        tmp_path,
        [{**turn, "delay_s": 0.2} for turn in TWELVE],
        FILES,
        sandbox="danger_full_access",
        on_end="repeat_last",
    )
    try:
        with Stack(home=home):
            settings = resolve(Settings(home=home, blob_dir=str(folder / "blobs") if where == "blobs" else ""))
            env = {"SALIENCE_BLOB_DIR": str(settings.blobs)}
            async with client_on(settings, "full") as salience, Keeper(home, "full", tmp_path / "keeper", env=env):
                session_id = await play.start(salience)
                await until(lambda: _began(salience, session_id), timeout_s=300)
                disk.fill()
                toll.faults[f"disk of {where} full"] += 1
                telling = asyncio.create_task(_told(salience, session_id, "while-full"))
                await asyncio.sleep(FULL_S)
                disk.free()
                room = asyncio.get_running_loop().time()
                acknowledged = ["task", await telling]
                outcome = await judged(play, salience, session_id, toll, acknowledged=acknowledged)
                say(f"ended {asyncio.get_running_loop().time() - room:.1f} s after there was room")
        assert outcome.result.reason in ("finished", "answered")
    finally:
        disk.unmount()
