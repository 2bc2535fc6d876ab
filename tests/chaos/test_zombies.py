"""A worker that stood still and goes on is a zombie: its late results are not taken, and what it does late does no harm.

Two workers serve one queue. One is frozen until the session has ended on the other, then it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from salience.local import Stack
from salience.model.event import ToolCallFailed, ToolCallFinished
from salience.model.session import SandboxMode
from salience.settings import Settings
from salience.telemetry.failpoints import NAMES
from tests.chaos.conftest import Say
from tests.chaos.judge import effects_of, judged, note_recoveries
from tests.chaos.keeper import Keeper, Kill
from tests.chaos.lanes import Lanes
from tests.chaos.play import FILES, TWELVE, Outcome, Play, Turn, call, client_on
from tests.chaos.record import contents
from tests.chaos.seed import FULL, chance
from tests.chaos.toll import Toll
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

LATE_S = 1.5
"""What a zombie is given to do its worst before it is told to end, which it does when all it runs has ended."""

OCCURRENCES = {name: 2 for name in NAMES if name.startswith(("context", "model", "tool"))} | {"tool.before_run": 3}
"""In the middle of the session; the third run of a tool there is its first effect."""


async def zombie(
    stack: Stack, settings: Settings, play: Play, folder: Path, kill: Kill | None, sleeping: str, toll: Toll
) -> Outcome:
    """Play a session of which one worker is frozen, at a failpoint or while a command sleeps, and goes on after its end."""
    queue = folder.name
    first, second = Keeper(stack.home.root, queue, folder / "a"), Keeper(stack.home.root, queue, folder / "b")
    async with client_on(settings, queue) as salience, first:
        if kill:
            first.arm(kill)
        session_id = await play.start(salience)
        if kill:
            await until(partial(_frozen, first), timeout_s=300)
        else:
            await until(partial(_there, play.workspace(session_id) / "log.txt"), timeout_s=300)
            first.freeze()
        frozen_at = time.time()
        async with second:
            outcome = await judged(play, salience, session_id, toll)
            assert not sleeping or not _running(sleeping)
            first.disarm()
            first.thaw()
            await asyncio.sleep(LATE_S)
            await first.leave()
            toll.faults["worker frozen"] += 1
            if kill:
                toll.reached[kill.failpoint] += 1
            note_recoveries(toll, [outcome], [frozen_at])
            # What the zombie did after the end is in its counters and its folder, and not in the record.
            again = await play.end(salience, session_id)
            assert again.facts == outcome.facts
            assert play.counted(session_id) == play.counted(session_id) & play.allowed(outcome.events)
            assert contents(play.workspace(session_id)) == outcome.files
            return outcome


async def _frozen(keeper: Keeper) -> bool:
    return keeper.frozen()


def _running(words: str) -> list[str]:
    """Every command line that has the words in it."""
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if words in line]


async def _there(path: Path) -> bool:
    return path.exists()


@dataclass(frozen=True, slots=True)
class Late:
    """What became of a session of which one worker was a zombie."""

    outcome: Outcome
    counted: Counter[str]
    toll: Toll


@pytest.fixture(scope="module")
async def zombies(
    request: pytest.FixtureRequest, stack: Stack, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lanes[Late]]:
    """Every case, some side by side: a frozen worker costs seconds in which nothing happens."""

    async def played(
        name: str, sandbox: SandboxMode, turns: Sequence[Turn], kill: Kill | None, sleeping: str = ""
    ) -> Late:
        folder = tmp_path_factory.mktemp(name.replace(".", "-"))
        toll = Toll()
        play = Play(folder, turns, FILES, sandbox=sandbox)
        outcome = await zombie(stack, settings, play, folder / f"q-{folder.name}", kill, sleeping, toll)
        return Late(outcome, play.counted(outcome.session_id), toll)

    cases = {
        **{f"running-{box}": (box, [_lasting(box), _SEEN], None, SLEEPING[box]) for box in SANDBOXES},
        "claimed": ("danger_full_access", TWELVE, Kill("tool.before_run", 3, "stop")),
        "overwritten": ("workspace_write", _TWICE, Kill("tool.before_run", 1, "stop")),
        **{name: ("danger_full_access", TWELVE, Kill(name, at, "stop")) for name, at in OCCURRENCES.items()},
    }
    chosen = {item.callspec.params["name"] for item in request.session.items if "name" in params_of(item)}
    lanes = Lanes({name: partial(played, name, *case) for name, case in cases.items() if name in chosen}, at_once=6)
    yield lanes
    await lanes.close()


SANDBOXES: tuple[SandboxMode, ...] = ("danger_full_access", "workspace_write")
_SEEN = {"text": "I see what became of it."}
_TWICE: list[Turn] = [
    {"tool_calls": [call("write_file", path="notes.txt", content="the first words\n")]},
    {"tool_calls": [call("write_file", path="notes.txt", content="the last words\n")]},
    {"tool_calls": [call("finish", summary="done")]},
]


SLEEPING = {"danger_full_access": "sleep 300.25", "workspace_write": "sleep 301.25"}


def _lasting(sandbox: SandboxMode) -> Turn:
    command = f"echo once >> log.txt; {SLEEPING[sandbox]}; echo late >> log.txt"
    return {"tool_calls": [call("run_command", command=command)]}


@pytest.mark.parametrize("name", [f"running-{box}" for box in SANDBOXES])
async def test_frozen_in_the_middle_of_an_effect(name: str, zombies: Lanes[Late], toll: Toll) -> None:
    late = await zombies.outcome(name)
    toll.merge(late.toll.plain())
    outcome = late.outcome
    (end,) = (e.payload for e in outcome.events if isinstance(e.payload, (ToolCallFailed, ToolCallFinished)))
    assert isinstance(end, ToolCallFailed)
    assert end.kind == "outcome_unknown"
    toll.add("outcomes unknown, and said so")
    assert outcome.files["log.txt"] == b"once\n"
    assert outcome.result.reason == "answered"


@pytest.mark.parametrize("name", ["claimed"])
async def test_frozen_before_an_effect_it_has_claimed(name: str, zombies: Lanes[Late], toll: Toll) -> None:
    late = await zombies.outcome(name)
    toll.merge(late.toll.plain())
    assert effects_of(late.outcome.events) == [("e1", "outcome_unknown"), ("e2", "done"), ("e3", "done")]
    assert late.counted == {"e2": 1, "e3": 1}


@pytest.mark.parametrize("name", ["overwritten"])
async def test_frozen_before_a_change_that_others_have_built_upon(name: str, zombies: Lanes[Late], toll: Toll) -> None:
    late = await zombies.outcome(name)
    toll.merge(late.toll.plain())
    assert late.outcome.files["notes.txt"] == b"the last words\n"


@pytest.mark.parametrize(
    "name", [name for name in OCCURRENCES if FULL or name == chance("zombies").choice([*OCCURRENCES])]
)
async def test_frozen_at_a_failpoint(name: str, zombies: Lanes[Late], toll: Toll, say: Say) -> None:
    late = await zombies.outcome(name)
    toll.merge(late.toll.plain())
    outcome = late.outcome
    assert outcome.result.reason == "finished"
    assert outcome.files["notes.txt"] == b"the last line\nthe second line\n"
    assert outcome.files["docs/new.md"] == b"# New\n\nwritten one time\n"
    say(f"recovery {', '.join(f'{seconds:.1f} s' for seconds in toll.recoveries)}")


def params_of(item: pytest.Item) -> Mapping[str, Any]:
    """What a test is parametrized with."""
    return item.callspec.params if hasattr(item, "callspec") else {}
