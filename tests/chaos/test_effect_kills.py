"""A worker that dies inside an effect: it is never started again, and the model is told what changed (spec LOOP-4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from activities.context import Contexts
from salience.client import Salience
from salience.local import Stack
from salience.model.event import ContextBuilt, DiffApplied, Event, FileWritten, ToolCallFailed, ToolCallFinished
from salience.model.session import SandboxMode
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.keeper import Keeper, Kill
from tests.chaos.lanes import Lanes
from tests.chaos.play import Outcome, Play, call, client_on
from tests.chaos.record import recoveries, traces
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

FILES = {"kept.txt": "kept\n", "log.txt": "one\n"}
UNKNOWN = "it is not known whether it was done"


@dataclass(frozen=True, slots=True)
class Effect:
    """A session whose only effect was killed, and what can be found of the effect afterwards."""

    outcome: Outcome
    deaths: list[float]
    counted: str
    seen: str
    runs_on: bool

    @property
    def end(self) -> ToolCallFailed | ToolCallFinished:
        """The one end of the call."""
        (only,) = (payload for payload in _payloads(self.outcome.events, (ToolCallFailed, ToolCallFinished)))
        return only

    @property
    def written(self) -> list[tuple[str, str]]:
        """(path, change) of every file the call is known to have changed."""
        return [(payload.path, payload.change) for payload in _payloads(self.outcome.events, (FileWritten,))]

    def __str__(self) -> str:
        became = getattr(self.end, "kind", "done")
        return f"{became}, {recoveries(self.outcome.histories, self.deaths)}"


def _payloads(events: list[Event], kinds: tuple[type, ...]) -> list:
    return [event.payload for event in events if isinstance(event.payload, kinds)]


@pytest.fixture(scope="module")
async def effects(
    stack: Stack, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lanes[Effect]]:
    async def killed(name: str, sandbox: SandboxMode, kills: list[Kill], *, lasting_s: float = 0) -> Effect:
        folder = tmp_path_factory.mktemp(name)
        # Where the sandbox lets nothing out, the count has to be kept inside.
        counter = (folder if sandbox == "danger_full_access" else Path()) / f"counter-{name}"
        command = f"echo once >> {counter}; echo two >> log.txt; echo said; sleep {lasting_s}; echo late >> {counter}"
        turns = [{"tool_calls": [call("run_command", command=command)]}, {"text": "I see what became of it."}]
        play = Play(folder, turns, FILES, sandbox=sandbox)
        async with client_on(settings, name) as salience, Keeper(stack.home.root, name, folder, kills) as keeper:
            session_id = await play.start(salience)
            counted = play.workspace(session_id) / counter  # an absolute path stays what it is
            if lasting_s:
                await until(partial(_said, play.workspace(session_id) / "log.txt", "two"), timeout_s=300)
                keeper.kill()
            outcome = await play.end(salience, session_id)
            return Effect(
                outcome=outcome,
                deaths=keeper.deaths,
                counted=counted.read_text() if counted.exists() else "",
                seen=await _seen(salience, outcome),
                runs_on=_runs(str(counter)),
            )

    lanes = Lanes(
        {
            "open": partial(killed, "open", "danger_full_access", [], lasting_s=300),
            "sandboxed": partial(killed, "sandboxed", "workspace_write", [], lasting_s=301),
            "before": partial(killed, "before", "danger_full_access", [Kill("tool.before_run", 1)]),
            "after": partial(killed, "after", "danger_full_access", [Kill("tool.after_run", 1)]),
            "settled": partial(killed, "settled", "danger_full_access", [Kill("tool.after_settle", 1)]),
        }
    )
    yield lanes
    await lanes.close()


def _runs(word: str) -> bool:
    """Whether any process has the word in its command line."""
    return any(word in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


async def _said(path: Path, word: str) -> bool:
    return word in path.read_text()


async def _seen(salience: Salience, outcome: Outcome) -> str:
    """What the model was shown last."""
    *_, last = (event.payload for event in outcome.events if isinstance(event.payload, ContextBuilt))
    contexts = Contexts(salience.journal, salience.bundles, salience.blobs)
    compiled = await contexts.compiled(outcome.session_id, last.bundle.bundle_id)
    return "\n".join(message.model_dump_json() for message in compiled.messages)


@pytest.mark.parametrize("name", ["open", "sandboxed"])
async def test_killed_while_it_runs(name: str, effects: Lanes[Effect], say: Say) -> None:
    effect = await effects.outcome(name)
    say(str(effect))
    assert effect.counted == "once\n"
    assert not effect.runs_on
    _is_unknown(effect)
    assert ("log.txt", "modified") in effect.written
    assert "+two" in effect.seen
    assert "said" in effect.seen


async def test_killed_before_it_began(effects: Lanes[Effect], say: Say) -> None:
    effect = await effects.outcome("before")
    say(str(effect))
    assert effect.counted == ""
    _is_unknown(effect)
    assert effect.written == []
    assert "No file of the workspace changed" in effect.seen


async def test_killed_after_it_was_done(effects: Lanes[Effect], say: Say) -> None:
    effect = await effects.outcome("after")
    say(str(effect))
    assert effect.counted == "once\nlate\n"
    _is_unknown(effect)
    assert effect.written == [("log.txt", "modified")]
    assert "+two" in effect.seen


async def test_killed_after_its_outcome_was_recorded(effects: Lanes[Effect], say: Say) -> None:
    effect = await effects.outcome("settled")
    say(str(effect))
    assert effect.counted == "once\nlate\n"
    assert isinstance(effect.end, ToolCallFinished)
    assert effect.written == [("log.txt", "modified")]
    assert UNKNOWN not in effect.seen
    assert effect.outcome.result.reason == "answered"


def _is_unknown(effect: Effect) -> None:
    assert isinstance(effect.end, ToolCallFailed)
    assert effect.end.kind == "outcome_unknown"
    assert UNKNOWN in effect.seen
    assert bool(effect.written) == bool(_payloads(effect.outcome.events, (DiffApplied,)))
    assert effect.outcome.result.reason == "answered"
    assert effect.outcome.files["kept.txt"] == b"kept\n"
    assert sum(traces(history) for history in effect.outcome.histories) >= len(effect.deaths) == 1
