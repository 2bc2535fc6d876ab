"""Servers, workers, stores and workspaces go away in mid-session and come back; nothing acknowledged is lost (LOOP-3).

`make test` draws some of what can be done to the parts; `make chaos` does all of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from activities.context import Contexts
from salience.client import Salience
from salience.errors import BackendUnavailable
from salience.local import Stack, down, purge, resolve, up
from salience.local.process import ProcessId, working_in
from salience.local.stack import PartName
from salience.model.calls import Receipt
from salience.model.event import ContextBuilt, UserPromptSubmitted
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.judge import effects_of, judged, note_recoveries, unsure
from tests.chaos.keeper import Keeper
from tests.chaos.play import FILES, TWELVE, Outcome, Play, call, client_on
from tests.chaos.record import contents
from tests.chaos.rig import FAULTS, rigged
from tests.chaos.seed import FULL, chance
from tests.chaos.toll import Toll
from tests.conftest import until
from tests.s3_server import S3Server

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SLOWLY = [{**turn, "delay_s": 0.15} for turn in TWELVE]
INPUTS = 20
KILLED_AT = {2: ["worker"], 6: ["temporal"], 10: ["postgres"], 14: ["temporal", "postgres"], 18: ["temporal", "worker"]}
"""What dies while which input is being said."""
AWAY_S = 15.0
LASTS_S = {"frozen": 12.0, "silent": 12.0, "lost": 12.0}
"""Longer than the clients' patience: Temporal's client and the pool of connections give up after 10 s."""
ALL = list(FAULTS)
TRIED = ALL if FULL else [fault for fault in ALL if fault in chance("faults").sample(ALL, 4)]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play(tmp_path_factory.mktemp("play"), SLOWLY, FILES, sandbox="danger_full_access")


@pytest.fixture(scope="module")
async def undisturbed(
    stack: Stack, settings: Settings, play: Play, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    folder = tmp_path_factory.mktemp("undisturbed")
    async with client_on(settings, "calm") as salience, Keeper(stack.home.root, "calm", folder):
        return await play.end(salience, await play.start(salience))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A blob server for the cases that harm it."""
    with S3Server() as server:
        yield server


@pytest.mark.parametrize(("part", "fault"), TRIED)
async def test_a_harmed_part_changes_nothing(
    part: str,
    fault: str,
    request: pytest.FixtureRequest,
    stack: Stack,
    settings: Settings,
    play: Play,
    undisturbed: Outcome,
    tmp_path: Path,
    toll: Toll,
    say: Say,
) -> None:
    queue = f"{part}-{fault}"
    s3 = request.getfixturevalue("s3") if part == "s3" else None
    settings = s3.settings(settings) if s3 else settings
    async with client_on(settings, queue) as salience, rigged(stack, settings, queue, tmp_path / "rig", s3=s3) as rig:
        started = [await play.start(salience) for _ in range(2)]
        at = chance(queue).randrange(2, len(undisturbed.events) - 10)
        await until(lambda: reached(salience, started[0], at), timeout_s=300)
        await rig.harm(part, fault, LASTS_S.get(fault, 6.0), toll)
        outcomes = [await judged(play, salience, session_id, toll) for session_id in started]
        note_recoveries(toll, outcomes, rig.moments)
    say(f"from event {at} on, recovery {', '.join(f'{seconds:.1f} s' for seconds in toll.recoveries) or '-'}")
    for outcome in outcomes:
        as_undisturbed(outcome, undisturbed)


def as_undisturbed(outcome: Outcome, undisturbed: Outcome) -> None:
    """Fail unless a session ended as if nothing had happened; only an effect may tell that its worker died."""
    assert outcome.result.reason == "finished"
    if all(ended == "done" for _, ended in effects_of(outcome.events)):
        assert outcome.facts == undisturbed.facts
        assert outcome.files == undisturbed.files
    else:
        assert unsure(outcome) == unsure(undisturbed)


async def killed(stack: Stack, keeper: Keeper, parts: Sequence[str]) -> float:
    """Kill parts at once; returns the seconds until all of them answer again, the worker not counted."""
    began = time.monotonic()
    servers: list[PartName] = [part for part in ("temporal", "postgres") if part in parts]
    if "worker" in parts:
        keeper.kill()
    gone = [(part, stack.kill(part)) for part in servers]
    await asyncio.gather(*(asyncio.to_thread(stack.wait_restarted, part, pid, 60) for part, pid in gone))
    return time.monotonic() - began


async def reached(salience: Salience, session_id: str, seq: int) -> bool:
    """Whether the journal of a session has come so far."""
    position = await salience.journal.position(session_id)
    return position is not None and position.seq >= seq


async def test_acknowledged_inputs_are_delivered_once(
    stack: Stack, settings: Settings, tmp_path: Path, say: Say
) -> None:
    play = Play(tmp_path, [{"text": "I heard that.", "delay_s": 0.2}], FILES, on_end="repeat_last")
    queue = "inputs"
    async with client_on(settings, queue) as salience, Keeper(stack.home.root, queue, tmp_path / "keeper") as keeper:
        session_id = await play.start(salience)
        receipts: list[Receipt] = []
        async with asyncio.TaskGroup() as killing:
            for number in range(INPUTS):
                if number in KILLED_AT:
                    killing.create_task(killed(stack, keeper, KILLED_AT[number]))
                receipts.append(await acknowledged(salience, session_id, f"m{number}"))
        outcome = await play.end(salience, session_id)
        say(f"{len(KILLED_AT)} kills during {INPUTS} inputs, {outcome.result.turn} turns")
        assert outcome.result.reason == "answered", outcome.result.detail
        assert [receipt.message_id for receipt in receipts] == [f"m{number}" for number in range(INPUTS)]
        expected = ["task", *(f"m{number}" for number in range(INPUTS))]
        logged = [e.payload.message_id for e in outcome.events if isinstance(e.payload, UserPromptSubmitted)]
        assert list(dict.fromkeys(logged)) == expected
        transcript = await salience.journal.transcript(session_id)
        assert [entry.message_id for entry in transcript if entry.kind == "prompt"] == expected
        assert await heard(salience, outcome) == Counter(f"words of m{number}." for number in range(INPUTS))


async def acknowledged(salience: Salience, session_id: str, message_id: str) -> Receipt:
    """Say something until it is acknowledged, as a person would."""
    while True:
        try:
            return await salience.say(session_id, f"words of {message_id}.", message_id=message_id)
        except BackendUnavailable:
            continue


async def heard(salience: Salience, outcome: Outcome) -> Counter[str]:
    """How often each input is in the context that the model saw last."""
    *_, last = (event.payload for event in outcome.events if isinstance(event.payload, ContextBuilt))
    contexts = Contexts(salience.journal, salience.bundles, salience.blobs)
    compiled = await contexts.compiled(outcome.session_id, last.bundle.bundle_id)
    texts = [block.text for message in compiled.messages for block in message.content if block.type == "text"]
    return Counter(text for text in texts if text.startswith("words of"))


async def test_postgres_stays_away(
    stack: Stack, settings: Settings, play: Play, undisturbed: Outcome, tmp_path: Path, say: Say
) -> None:
    data = Path(stack.info.pg_data_dir)
    async with client_on(settings, "away") as salience, Keeper(stack.home.root, "away", tmp_path / "keeper"):
        session_id = await play.start(salience)
        await until(lambda: reached(salience, session_id, len(undisturbed.events) // 2))
        began = time.monotonic()
        while time.monotonic() - began < AWAY_S:
            # The supervisor goes on restarting it; it is killed each time before it answers.
            for pid in working_in(data, "postgres"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        back = time.monotonic()
        outcome = await play.end(salience, session_id)
        say(f"away for {AWAY_S:.0f} s, ended {time.monotonic() - back:.1f} s later")
    as_undisturbed(outcome, undisturbed)


async def test_a_vanished_workspace_ends_the_session_until_it_is_back(
    stack: Stack, settings: Settings, tmp_path: Path
) -> None:
    edit = call("edit_file", path="notes.txt", old_text="first", new_text="last")
    turns = [
        {"tool_calls": [call("list_files")]},
        {"tool_calls": [edit], "delay_s": 2},
        {"tool_calls": [edit]},
        {"tool_calls": [call("finish", summary="done")]},
    ]
    play = Play(tmp_path, turns, FILES)
    async with client_on(settings, "gone") as salience, Keeper(stack.home.root, "gone", tmp_path / "keeper"):

        async def thinks() -> bool:
            status = await salience.query(session_id, "status") or {}
            return (status.get("step"), status.get("turn")) == ("calling_model", 2)

        session_id = await play.start(salience)
        workspace, elsewhere = play.workspace(session_id), tmp_path / "elsewhere"
        await until(thinks, timeout_s=300)
        workspace.rename(elsewhere)
        assert (await salience.result(session_id)).reason == "workspace_gone"
        assert await salience.resume(session_id) == "started"
        assert (await salience.result(session_id)).reason == "workspace_gone"
        elsewhere.rename(workspace)
        assert await salience.resume(session_id) == "started"
        outcome = await play.end(salience, session_id)
        assert outcome.result.reason == "finished"
        assert [event.type for event in outcome.events].count("SessionEnded") == 3
        assert contents(workspace)["notes.txt"] == b"the last line\nthe second line\n"


async def test_an_update_that_nobody_answers_is_an_outage(
    settings: Settings, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salience.client.RPC_TIMEOUT", timedelta(seconds=2))
    async with client_on(settings, "nobody") as salience:
        session_id = await play.start(salience)
        with pytest.raises(BackendUnavailable, match="no worker answered"):
            await salience.say(session_id, "Is anybody there?", message_id="m1")
        waiting = asyncio.create_task(salience.pause(session_id))
        await asyncio.sleep(0.5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await salience.temporal.get_workflow_handle(session_id).terminate()


async def all_dead(processes: Sequence[ProcessId]) -> bool:
    """Whether none of them lives any more."""
    return not any(process.alive() for process in processes)


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that Postgres' account can reach; whatever runs under it ends with the test."""
    folder = Path(tempfile.mkdtemp(prefix="salience-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "home"
    down(folder / "home")
    purge(folder / "home")
    shutil.rmtree(folder, ignore_errors=True)


async def test_the_whole_stack_is_killed_and_started_again(home: Path, play: Play, toll: Toll, say: Say) -> None:
    info = await asyncio.to_thread(up, home)
    settings = resolve(Settings(home=home))
    async with client_on(settings, settings.task_queue) as salience:
        started = [await play.start(salience) for _ in range(3)]
        await until(lambda: reached(salience, started[0], 20), timeout_s=300)
        supervisor = ProcessId(pid=info.supervisor_pid, started=info.supervisor_started)
        processes = [supervisor, *info.processes()]
        for process in processes:
            process.signal(signal.SIGKILL)
        died = time.time()
        await until(partial(all_dead, processes), timeout_s=300)
        toll.faults["everything and its supervisor killed"] += 1
    await asyncio.to_thread(up, home)
    settings = resolve(Settings(home=home))
    async with client_on(settings, settings.task_queue) as salience:
        outcomes = await asyncio.gather(*(judged(play, salience, session_id, toll) for session_id in started))
        note_recoveries(toll, outcomes, [died])
    say(f"recovery {', '.join(f'{seconds:.1f} s' for seconds in toll.recoveries)}")
    assert {outcome.result.reason for outcome in outcomes} == {"finished"}
