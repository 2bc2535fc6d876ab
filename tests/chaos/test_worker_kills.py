"""Workers are killed at every failpoint, early and late; reads and idempotent work end as if undisturbed (LOOP-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from tests.chaos.keeper import Keeper, Kill
from tests.chaos.lanes import Lanes
from tests.chaos.play import FILES, TURNS, Outcome, Play, client_on
from tests.chaos.record import recoveries, traces
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SESSIONS = 2

TOOLS = sum(len(turn["tool_calls"]) for turn in TURNS)
PASSINGS = {
    # Opening the run is a projection, too.
    "context.before_project": len(TURNS) + 1,
    "context.after_project": len(TURNS) + 1,
    "context.after_build": len(TURNS),
    "model.before_call": len(TURNS),
    "model.after_call": len(TURNS),
    "model.after_store": len(TURNS),
    "tool.before_run": TOOLS,
    "tool.after_run": TOOLS,
    "tool.after_settle": 2,
    "archive.before_write": 1,
    "archive.after_write": 1,
}
"""How often one undisturbed session passes each failpoint; no failpoint may be left out."""


def kills_at(failpoint: str) -> list[Kill]:
    """The first passing, and one shortly before the last session ends."""
    last = PASSINGS[failpoint] * SESSIONS - 1
    return [Kill(failpoint, 1), *([Kill(failpoint, last)] if last > 1 else [])]


@dataclass(frozen=True, slots=True)
class Case:
    """Sessions that ran side by side while their workers were killed."""

    outcomes: list[Outcome]
    deaths: list[float]

    @property
    def traces(self) -> int:
        """How often their histories tell of a lost worker."""
        return sum(traces(history) for outcome in self.outcomes for history in outcome.histories)

    def __str__(self) -> str:
        histories = [history for outcome in self.outcomes for history in outcome.histories]
        return f"{recoveries(histories, self.deaths)}, {self.traces} traces"


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play(tmp_path_factory.mktemp("play"), TURNS, FILES)


@pytest.fixture(scope="module")
async def cases(
    request: pytest.FixtureRequest,
    stack: Stack,
    settings: Settings,
    play: Play,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Lanes[Case]]:
    async def played(name: str, kills: list[Kill]) -> Case:
        folder = tmp_path_factory.mktemp(name)
        async with client_on(settings, name) as salience, Keeper(stack.home.root, name, folder, kills) as keeper:
            started = [await play.start(salience) for _ in range(SESSIONS)]
            outcomes = [await play.end(salience, session_id) for session_id in started]
            return Case(outcomes, keeper.deaths)

    chosen = {item.callspec.params["failpoint"] for item in request.session.items if "failpoint" in _params(item)}
    lanes = Lanes(
        {
            "undisturbed": partial(played, "undisturbed", []),
            **{name: partial(played, name, kills_at(name)) for name in NAMES if name in chosen},
        }
    )
    yield lanes
    await lanes.close()


def _params(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def test_every_failpoint_is_passed() -> None:
    assert set(PASSINGS) == set(NAMES)


async def test_undisturbed_sessions_are_equal(cases: Lanes[Case]) -> None:
    case = await cases.outcome("undisturbed")
    first, *others = case.outcomes
    assert first.result.reason == "finished"
    assert first.files["notes.txt"] == b"the last line\nthe second line\n"
    assert case.traces == 0
    for other in others:
        assert (other.facts, other.files) == (first.facts, first.files)


@pytest.mark.parametrize("failpoint", NAMES)
async def test_a_killed_worker_changes_nothing(failpoint: str, cases: Lanes[Case], say: Say) -> None:
    undisturbed = (await cases.outcome("undisturbed")).outcomes[0]
    case = await cases.outcome(failpoint)
    say(str(case))
    for outcome in case.outcomes:
        assert outcome.facts == undisturbed.facts
        assert outcome.files == undisturbed.files
        assert outcome.result.reason == "finished"
    assert len(case.deaths) == len(kills_at(failpoint))
    assert case.traces >= len(case.deaths)


async def polled_by(salience: Salience, queue: str, workers: int) -> bool:
    """Whether so many workers wait for activities of a queue."""
    request = DescribeTaskQueueRequest(
        namespace=salience.temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    return len((await salience.temporal.workflow_service.describe_task_queue(request)).pollers) >= workers


async def test_another_worker_takes_over(
    stack: Stack, settings: Settings, play: Play, tmp_path: Path, cases: Lanes[Case], say: Say
) -> None:
    undisturbed = (await cases.outcome("undisturbed")).outcomes[0]
    queue = "two-workers"
    async with (
        client_on(settings, queue) as salience,
        Keeper(stack.home.root, queue, tmp_path / "stays"),
        Keeper(stack.home.root, queue, tmp_path / "dies", [Kill("tool.before_run", 2)]) as dying,
    ):
        await until(partial(polled_by, salience, queue, 2))
        started = [await play.start(salience) for _ in range(4)]
        outcomes = list(await asyncio.gather(*(play.end(salience, session_id) for session_id in started)))
        case = Case(outcomes, dying.deaths)
    say(str(case))
    for outcome in outcomes:
        assert (outcome.facts, outcome.files) == (undisturbed.facts, undisturbed.files)
    assert case.traces >= len(case.deaths) == 1
