"""A worker is killed at every passing of every failpoint of a session of twelve steps, one kill a session (LOOP-3, LOOP-4).

`make test` draws one passing of each failpoint; `make chaos` has all of them. The passings are counted and not listed, so
that a failpoint that no session reaches fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from salience.client import Salience
from salience.local import Stack
from salience.settings import Settings
from salience.telemetry.failpoints import NAMES
from tests.chaos.conftest import Say
from tests.chaos.judge import effects_of, judged, note_recoveries, unsure
from tests.chaos.keeper import Keeper, Kill
from tests.chaos.lanes import LANES, Lanes
from tests.chaos.play import FILES, LONG_FILES, TIGHT, TURNS, TWELVE, Outcome, Play, client_on
from tests.chaos.record import Fact, traces
from tests.chaos.seed import FULL, chance
from tests.chaos.toll import Toll
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3_600 if FULL else 900)]


@dataclass(frozen=True, slots=True)
class Calm:
    """A session that nothing happened to, and how often it passed each failpoint."""

    outcome: Outcome
    passings: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Killed:
    """Sessions of which each lost its worker once, at the same failpoint."""

    outcomes: list[Outcome]
    deaths: list[float]
    toll: Toll


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Play]:
    """The same twelve steps in a wide window and in one that is too small for them."""
    wide, tight = tmp_path_factory.mktemp("wide"), tmp_path_factory.mktemp("tight")
    return {
        "wide": Play(wide, TWELVE, FILES, sandbox="danger_full_access"),
        "tight": Play(tight, TWELVE, LONG_FILES, sandbox="danger_full_access", **TIGHT),
    }


@pytest.fixture(scope="module")
async def keepers(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[asyncio.Queue[Keeper]]:
    """One worker for each lane; whoever takes it has it alone."""
    async with AsyncExitStack() as living:
        free: asyncio.Queue[Keeper] = asyncio.Queue()
        for number in range(LANES):
            folder = tmp_path_factory.mktemp(f"lane-{number}")
            free.put_nowait(await living.enter_async_context(Keeper(stack.home.root, folder.name, folder)))
        yield free


@pytest.fixture(scope="module")
async def calm(settings: Settings, plays: dict[str, Play], keepers: asyncio.Queue[Keeper]) -> dict[str, Calm]:
    """Each session undisturbed."""

    async def played(play: Play) -> Calm:
        keeper = await keepers.get()
        try:
            async with client_on(settings, keeper.queue) as salience:
                keeper.disarm()
                outcome = await play.end(salience, await play.start(salience))
                return Calm(outcome, keeper.passings())
        finally:
            keepers.put_nowait(keeper)

    return dict(zip(plays, await asyncio.gather(*map(played, plays.values())), strict=True))


def passings_of(name: str, calm: Mapping[str, Calm]) -> list[tuple[str, int]]:
    """(session, occurrence) of every passing that is to be tried: in the wide window where it is reached there."""
    where = next((window for window in calm if calm[window].passings.get(name)), None)
    if where is None:
        return []
    found = [(where, occurrence + 1) for occurrence in range(calm[where].passings[name])]
    return found if FULL else [chance(f"passing of {name}").choice(found)]


@pytest.fixture(scope="module")
async def cases(
    request: pytest.FixtureRequest,
    settings: Settings,
    plays: dict[str, Play],
    calm: dict[str, Calm],
    keepers: asyncio.Queue[Keeper],
) -> AsyncIterator[Lanes[Killed]]:
    async def killed(name: str) -> Killed:
        done = Killed([], [], Toll())
        for window, occurrence in passings_of(name, calm):
            keeper = await keepers.get()
            try:
                before = len(keeper.deaths)
                keeper.arm(Kill(name, occurrence))
                async with client_on(settings, keeper.queue) as salience:
                    outcome = await judged(plays[window], salience, await plays[window].start(salience), done.toll)
                assert keeper.deaths[before:], f"passing {occurrence} of {name} never came"
            finally:
                keeper.disarm()
                keepers.put_nowait(keeper)
            done.outcomes.append(outcome)
            done.deaths.extend(keeper.deaths[before:])
            done.toll.faults["worker killed"] += 1
            done.toll.reached[name] += 1
            note_recoveries(done.toll, [outcome], keeper.deaths[before:])
        return done

    chosen = {item.callspec.params["failpoint"] for item in request.session.items if "failpoint" in _params(item)}
    lanes = Lanes({name: partial(killed, name) for name in NAMES if name in chosen})
    yield lanes
    await lanes.close()


def _params(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


async def test_every_failpoint_is_reached(calm: dict[str, Calm]) -> None:
    reached = {name for each in calm.values() for name in each.passings}
    assert reached == set(NAMES)


async def test_undisturbed_sessions_do_every_effect_once(calm: dict[str, Calm], plays: dict[str, Play]) -> None:
    for window, each in calm.items():
        assert each.outcome.result.reason == "finished"
        assert effects_of(each.outcome.events) == [("e1", "done"), ("e2", "done"), ("e3", "done")]
        assert plays[window].counted(each.outcome.session_id) == {"e1": 1, "e2": 1, "e3": 1}
        assert sum(map(traces, each.outcome.histories)) == 0


@pytest.mark.parametrize("failpoint", NAMES)
async def test_a_killed_worker_changes_nothing(
    failpoint: str, calm: dict[str, Calm], cases: Lanes[Killed], toll: Toll, say: Say
) -> None:
    case = await cases.outcome(failpoint)
    toll.merge(case.toll.plain())
    say(f"{len(case.deaths)} kills, recovery {', '.join(f'{seconds:.1f} s' for seconds in case.toll.recoveries[:6])}")
    assert case.outcomes
    for outcome in case.outcomes:
        window, undisturbed = next((w, c.outcome) for w, c in calm.items() if c.passings.get(failpoint))
        assert outcome.result.reason == "finished"
        assert sum(map(traces, outcome.histories)) >= 1
        if all(ended == "done" for _, ended in effects_of(outcome.events)):
            assert told(outcome, window) == told(undisturbed, window)
            assert outcome.files == undisturbed.files
        else:
            assert failpoint.startswith("tool.")
            assert unsure(outcome) == unsure(undisturbed)


def told(outcome: Outcome, window: str) -> list[Fact]:
    """What a record says, as far as it must be equal.

    Sizes in tokens depend on ids and paths a little; in a tight window a few tokens decide where a compaction cuts.
    """
    if window == "wide":
        return outcome.facts
    by_size = ("ContextBuilt", "CompactionCompleted")
    return [fact._replace(payload={}) if fact.type in by_size else fact for fact in outcome.facts]


async def polled_by(salience: Salience, queue: str, workers: int) -> bool:
    """Whether so many workers wait for activities of a queue."""
    request = DescribeTaskQueueRequest(
        namespace=salience.temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    return len((await salience.temporal.workflow_service.describe_task_queue(request)).pollers) >= workers


async def test_another_worker_takes_over(
    stack: Stack, settings: Settings, tmp_path: Path, toll: Toll, say: Say
) -> None:
    play = Play(tmp_path, TURNS, FILES)
    queue = "two-workers"
    async with (
        client_on(settings, queue) as salience,
        Keeper(stack.home.root, queue, tmp_path / "stays"),
        Keeper(stack.home.root, queue, tmp_path / "dies", [Kill("tool.before_run", 2)]) as dying,
    ):
        await until(partial(polled_by, salience, queue, 2), timeout_s=300)
        started = [await play.start(salience) for _ in range(4)]
        outcomes = await asyncio.gather(*(judged(play, salience, session_id, toll) for session_id in started))
    toll.faults["worker killed"] += len(dying.deaths)
    note_recoveries(toll, outcomes, dying.deaths)
    say(f"{len(dying.deaths)} kill")
    assert len(dying.deaths) == 1
    first, *others = outcomes
    for other in others:
        assert (other.facts, other.files) == (first.facts, first.files)
