"""Many sessions at once while everything is killed, frozen, cut and refused by chance (LOOP-3, LOOP-4): the storm.

`make chaos` has fifty sessions, `make test` six. The schedule follows from the seed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from salience.client import Salience
from salience.errors import SalienceError
from salience.local import Stack
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.judge import judged, note_recoveries
from tests.chaos.play import FILES, TWELVE, Outcome, Play, client_on
from tests.chaos.rig import FAULTS, rigged
from tests.chaos.seed import FULL, chance
from tests.chaos.toll import Toll

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200)]

SESSIONS = 50 if FULL else 6
HARMS = 40 if FULL else 5
WORKERS = 2
STORMY = [fault for fault in FAULTS if fault != ("blobs", "missing") and fault[0] != "s3"]
"""A folder that is missing when a worker starts is made anew: a deployment keeps its mount points unwritable."""
SHORT_S = (0.5, 6.0)
LONG_S = (10.0, 14.0)
"""Beyond every heartbeat and every client's patience; one harm in six."""
FIRST_S = 3.0
CALM_S = (0.0, 2.5)
TALKATIVE = 3
"""Every third session is told something while it works."""


async def test_sessions_outlast_a_storm(stack: Stack, settings: Settings, tmp_path: Path, toll: Toll, say: Say) -> None:
    draw = chance("storm")
    # What is said may come when the last turn is already taken; the model then says once more that it is done.
    play = Play(
        tmp_path,
        [{**turn, "delay_s": 0.3} for turn in TWELVE],
        FILES,
        sandbox="danger_full_access",
        on_end="repeat_last",
    )
    queue = "storm"
    async with (
        client_on(settings, queue) as salience,
        rigged(stack, settings, queue, tmp_path / "rig", workers=WORKERS) as rig,
    ):
        told: dict[str, list[str]] = {}
        for number in range(SESSIONS):
            session_id = await play.start(salience)
            told[session_id] = ["task", *(f"more-{n}" for n in range(2) if number % TALKATIVE == 0)]
        began = time.monotonic()
        schedule = [
            (*draw.choice(STORMY), draw.uniform(*(LONG_S if draw.random() < 1 / 6 else SHORT_S))) for _ in range(HARMS)
        ]
        async with asyncio.TaskGroup() as saying:
            for session_id, message_ids in told.items():
                saying.create_task(_say_all(salience, session_id, message_ids[1:]))
            await asyncio.sleep(FIRST_S)
            for part, fault, seconds in schedule:
                await rig.harm(part, fault, seconds, toll)
                await asyncio.sleep(draw.uniform(*CALM_S))
        over = time.monotonic()
        ended = await asyncio.gather(
            *(
                judged(play, salience, session_id, toll, acknowledged=message_ids)
                for session_id, message_ids in told.items()
            ),
            return_exceptions=True,
        )
        outcomes = [each for each in ended if isinstance(each, Outcome)]
        note_recoveries(toll, outcomes, rig.moments)
    say(
        f"{SESSIONS} sessions, {HARMS} harms in {over - began:.0f} s, all ended {time.monotonic() - over:.0f} s later, "
        f"{sum(outcome.result.turn for outcome in outcomes)} turns"
    )
    errors = [each for each in ended if isinstance(each, BaseException)]
    assert not errors, errors
    assert {outcome.result.reason for outcome in outcomes} <= {"finished", "answered"}


async def _say_all(salience: Salience, session_id: str, message_ids: list[str]) -> None:
    """Say some things to a session, each until it is acknowledged."""
    for message_id in message_ids:
        while True:
            try:
                await salience.say(session_id, f"words of {message_id}.", message_id=message_id)
                break
            except SalienceError:
                await asyncio.sleep(0.3)
