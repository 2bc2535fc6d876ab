"""A worker whose clock jumps back an hour and forward a day goes on: nothing of a session depends on a worker's clock.

The clock is that of the whole worker process, Temporal's core included; the servers keep theirs, as on two machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from salience.client import Salience
from salience.local import Stack
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.judge import judged
from tests.chaos.keeper import Keeper
from tests.chaos.play import FILES, TWELVE, Play, client_on
from tests.chaos.toll import Toll
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

JUMPS = {20: "-3600", 50: "+86400"}
"""At which seq the clock jumps, and to how many seconds off."""
RETRIED = {"error": {"kind": "overload", "message": "busy"}}


def shifted(folder: Path) -> tuple[Path, dict[str, str]]:
    """The file that says how far a process is off, and the variables that make it so."""
    spec = find_spec("libfaketime")
    if spec is None or spec.origin is None:
        pytest.skip("the library that shifts a clock is not installed")
    library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    offset = folder / "offset"
    offset.write_text("+0\n")
    env = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
        "NO_FAKE_STAT": "1",  # else no compiled module is as old as its source, and a start takes a minute
    }
    asked = [sys.executable, "-c", "import time; print(time.time())"]
    offset.write_text("+86400\n")
    there = subprocess.run(asked, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    if float(there.stdout) < datetime.now().timestamp() + 80_000:
        pytest.skip("the clock of a process cannot be shifted on this system")
    offset.write_text("+0\n")
    return offset, env


async def reached(salience: Salience, session_id: str, seq: int) -> bool:
    """Whether the journal of a session has come so far."""
    position = await salience.journal.position(session_id)
    return position is not None and position.seq >= seq


async def test_a_jumping_clock_changes_nothing(
    stack: Stack, settings: Settings, tmp_path: Path, toll: Toll, say: Say
) -> None:
    offset, env = shifted(tmp_path)
    turns = [{**turn, "delay_s": 0.3} for turn in TWELVE]
    turns.insert(6, RETRIED)  # a durable timer after the jump
    play = Play(tmp_path, turns, FILES, sandbox="danger_full_access")
    async with client_on(settings, "calm-clock") as salience, Keeper(stack.home.root, "calm-clock", tmp_path / "calm"):
        calm = await play.end(salience, await play.start(salience))
    queue = "jumping"
    began = datetime.now().astimezone()
    async with (
        client_on(settings, queue) as salience,
        Keeper(stack.home.root, queue, tmp_path / "keeper", env=env) as keeper,
    ):
        session_id = await play.start(salience)
        for seq, jump in JUMPS.items():
            await until(partial(reached, salience, session_id, seq), timeout_s=300)
            offset.with_suffix(".new").write_text(f"{jump}\n")
            offset.with_suffix(".new").replace(offset)
            toll.faults["clock of worker jumped"] += 1
        outcome = await judged(play, salience, session_id, toll)
        assert not keeper.deaths
    times = [datetime.fromisoformat(event.timestamp) for event in outcome.events]
    say(f"{len(JUMPS)} jumps, events over {(max(times) - min(times)).total_seconds():.1f} s of the server's clock")
    assert outcome.facts == calm.facts
    assert outcome.files == calm.files
    # An event's time is the server's, whoever decodes it.
    assert began - timedelta(seconds=5) <= min(times)
    assert max(times) <= datetime.now().astimezone() + timedelta(seconds=5)
