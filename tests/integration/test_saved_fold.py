"""What is stored of a fold gives the fold back, at any event and whatever of it was deleted (spec PRJ-1, PRJ-2)."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from salience.errors import VerificationFailed
from salience.local import Stack
from salience.log.chain import row_of
from salience.model import event as ev
from salience.model.compaction import Checkpoint, CompactionChecks
from salience.model.state import State
from salience.projection.projection import Projection, artifacts_of
from salience.projection.transcript import is_prompt
from salience.store import batch as batches
from salience.store import migrations
from salience.store.batch import Batch, Position
from salience.store.journal import Journal, StateAt
from salience.store.postgres import Postgres
from salience.store.sources import BY_HASH, BY_ID, KNOWN, SHOWN, Sources

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json.gz"))


class Recorder:
    """A projector over given events: folds portions of them and records each as the real one does."""

    def __init__(self, postgres: Postgres, journal: Journal, session_id: str) -> None:
        self.postgres = postgres
        self.journal = journal
        self.projection = Projection.empty(session_id)
        self.known: StateAt | None = None

    async def take(self, events: list[ev.Event], following: ev.Event | None) -> None:
        """Record a portion; where a context is built next, the transcript is sealed and the build remembered."""
        projection = self.projection
        expected = Position(projection.cursor.seq, projection.head)
        length = len(projection.transcript.entries)
        rows = []
        for event in events:
            rows.append(row_of(event, projection.head, 1))
            projection.fold(event)
            projection.head = rows[-1].hash
            projection.cursor = projection.cursor.model_copy(
                update={"seq": event.seq, "last_event_id": event.event_id, "run_id": event.run_id}
            )
        if following is not None and isinstance(following.payload, ev.ContextBuilt):
            projection.transcript.seal(projection.cursor.seq)
            built = {"bundle_id": following.payload.bundle.bundle_id, "state": {"number": projection.cursor.seq}}
            projection.workplace = projection.workplace.model_copy(update={"built_epoch": built})
        brought = [artifact for event in events for artifact in artifacts_of(event)]
        batch = Batch(projection, rows, projection.transcript.entries[length:], brought)
        async with self.postgres.connection() as connection:
            assert await self.journal.record(connection, expected, batch)

    async def assert_loaded_is_folded(self) -> None:
        session_id = self.projection.cursor.session_id
        loaded = await self.journal.load(session_id)
        assert loaded is not None
        assert loaded.save() == self.projection.save() == await self.journal.latest(session_id)
        place, kept = self.projection.workplace, self.projection.transcript.entries.copy()
        kept.forget_before(place.verbatim_from, sparing=is_prompt, spared_from=place.prompts_from)
        assert loaded.transcript.entries.held == kept.held
        assert (loaded.transcript.entries.first, loaded.lacks) == (kept.first, False)
        assert loaded.transcript.seen == self.projection.transcript.seen
        assert await self.journal.standing(session_id) == _standing(self.projection)
        for earlier in (None, self.known):
            self.known = await self.journal.state(session_id, earlier)
            assert self.known == StateAt(self.projection.cursor.seq, self.projection.head, self.projection.state)


def _standing(projection: Projection) -> object:
    from salience.projection.projection import Standing

    saved = projection.save()
    return Standing(
        cursor=saved.cursor,
        head=saved.head,
        workplace=saved.workplace,
        stats=saved.stats,
        transcript=saved.transcript,
    )


@pytest.fixture
async def postgres(stack: Stack) -> AsyncIterator[Postgres]:
    postgres = Postgres(stack.info.postgres.runtime_dsn)
    yield postgres
    await postgres.close()


@pytest.fixture
def recorder(postgres: Postgres, session_id: str) -> Recorder:
    return Recorder(postgres, Journal(postgres, "default"), session_id)


def recorded(name: str) -> Path:
    """A golden history by name."""
    return next(path for path in GOLDEN if path.name.startswith(name))


def events_of(path: Path, session_id: str) -> list[ev.Event]:
    golden = json.loads(gzip.decompress(path.read_bytes()))
    return [ev.Event.model_validate({**event, "session_id": session_id}) for event in golden["events"]]


def many(session_id: str, *, files: int, turns: int) -> list[ev.Event]:
    """The events of a session that writes one of many files at each turn."""
    events: list[ev.Event] = []

    def add(payload: ev.Payload, slot: str) -> None:
        seq = len(events) + 1
        events.append(
            ev.Event(
                event_id=f"run:{seq}:{slot}",
                session_id=session_id,
                run_id="run",
                seq=seq,
                timestamp="2026-01-01T00:00:00.000000Z",
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
            )
        )

    for turn in range(turns):
        if turn == 0:
            text = f"prompt {turn}"
            add(ev.UserPromptSubmitted(message_id=f"p{turn}", text=text, size_bytes=9, delivery="update"), "prompt")
        call = f"call_{turn}"
        path = f"src/a/rather/long/folder/name/for/a/file/module_{turn % files}.py"
        add(
            ev.FileWritten(
                tool_call_id=call, path=path, change="modified", before_hash="a" * 64, after_hash=f"{turn:064}"
            ),
            f"written:{call}",
        )
        add(ev.DiffApplied(tool_call_id=call, diff_ref="d" * 64, files=1, added=1, removed=1), f"diff:{call}")
    return events


@pytest.mark.parametrize(("small", "every"), [(16 * 1024, 256), (0, 16), (0, 10**9)])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.split(".")[0])
async def test_the_fold_comes_back_at_every_prefix_of_a_recorded_history(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, session_id: str, path: Path, small: int, every: int
) -> None:
    monkeypatch.setattr(batches, "SMALL_STATE", small)
    monkeypatch.setattr(batches, "SNAPSHOT_EVERY", every)
    events = events_of(path, session_id)
    dice = random.Random(7)
    at = 0
    while at < len(events):
        portion = dice.randint(1, 3 if len(events) < 200 else 40)
        upto = next(
            (
                n
                for n in range(at + 1, min(at + portion, len(events)))
                if isinstance(events[n].payload, ev.ContextBuilt)
            ),
            min(at + portion, len(events)),
        )
        await recorder.take(events[at:upto], events[upto] if upto < len(events) else None)
        await recorder.assert_loaded_is_folded()
        at = upto
    assert recorder.projection.cursor.seq == len(events)


async def test_deleting_what_is_stored_of_the_state_changes_nothing(
    stack: Stack, recorder: Recorder, session_id: str
) -> None:
    events = many(session_id, files=150, turns=300)
    for at in range(0, len(events), 20):
        await recorder.take(events[at : at + 20], None)
    await recorder.assert_loaded_is_folded()
    with psycopg.connect(stack.info.postgres.superuser_dsn, autocommit=True) as connection:
        where = f"WHERE session_id = '{session_id}'"
        kept = connection.execute(f"SELECT count(*) FROM state_snapshots {where}".encode()).fetchone()
        assert kept == (2,)
        for statement in (
            f"DELETE FROM state_snapshots {where} AND seq > 300",
            f"DELETE FROM state_snapshots {where}",
            f"UPDATE sessions SET state = NULL, state_seq = 0 {where}",
        ):
            connection.execute(statement.encode())
            await recorder.assert_loaded_is_folded()
        # A state that another release's fold made may be any other: it is not looked at.
        connection.execute(f"UPDATE sessions SET state = 'x', state_seq = seq, state_fold = 1 {where}".encode())
        await recorder.assert_loaded_is_folded()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
async def test_what_a_checkpoint_stands_for_is_not_held(recorder: Recorder, session_id: str, share: float) -> None:
    """Loaded or folded on, the same entries are in memory: all from the checkpoint on, before it some of the user's."""
    events = events_of(recorded("many_turns"), session_id)
    await recorder.take(events, None)
    whole = list(recorder.projection.transcript.entries)
    first = 1 + int(share * (len(whole) - 2))
    prompts = [entry for entry in whole[:first] if entry.kind == "prompt"]
    await recorder.take([compacted(events[-1], first, prompts_from=prompts[-1].position)], None)
    recorder.projection.forget()
    loaded = await recorder.journal.load(session_id)
    assert loaded is not None
    for transcript in (recorder.projection.transcript, loaded.transcript):
        assert transcript.entries.held == [*prompts[-1:], *whole[first:]]
        assert transcript.entries.first == first
        assert len(transcript.entries) == len(whole)
    assert loaded.transcript.seen == recorder.projection.transcript.seen
    assert loaded.save() == recorder.projection.save()
    assert not loaded.lacks
    back = ev.CompactionRolledBack(compaction_id="c1", checkpoint=None, tokens_before=1, tokens_after=2)
    loaded.fold(following(events[-1], 2, back))
    assert loaded.lacks
    assert list(await recorder.journal.verbatim(session_id, loaded.workplace, len(whole))) == whole


def following(last: ev.Event, after: int, payload: ev.Payload) -> ev.Event:
    """An event some places behind another."""
    seq = last.seq + after
    change = {"seq": seq, "event_id": f"run:{seq}:x", "type": type(payload).__name__, "payload": payload}
    return last.model_copy(update=change)


def compacted(last: ev.Event, first_kept: int, *, prompts_from: int) -> ev.Event:
    """The event of a checkpoint, next after another event."""
    checkpoint = Checkpoint(
        compaction_id="c1",
        number=1,
        record_ref="a" * 64,
        summary_ref="b" * 64,
        from_message_id="m1",
        to_message_id="m2",
        first_kept=first_kept,
        first_kept_message_id="m3",
        prompts_from=prompts_from,
        messages=1,
        tokens_before=2,
        tokens_after=1,
    )
    done = ev.CompactionCompleted(trigger="proactive", checkpoint=checkpoint, policy="p", checks=CompactionChecks())
    return following(last, 1, done)


@pytest.mark.parametrize(
    "deleted", ["DELETE FROM messages WHERE position = 1 AND", "UPDATE sessions SET projection = NULL WHERE"]
)
async def test_a_cache_that_events_alone_do_not_bring_back_is_named(
    stack: Stack, recorder: Recorder, session_id: str, deleted: str
) -> None:
    await recorder.take(events_of(recorded("tools"), session_id), None)
    with psycopg.connect(stack.info.postgres.superuser_dsn) as connection:
        connection.execute(f"{deleted} session_id = '{session_id}'".encode())
    with pytest.raises(VerificationFailed, match="stored") as raised:
        await recorder.journal.load(session_id)
    assert "--rebuild" in raised.value.line()


async def test_what_a_turn_writes_does_not_grow_with_the_session(
    stack: Stack, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, session_id: str
) -> None:
    """Late in a session with 500 files a turn writes as many bytes as early; in memory a forgotten beginning is gone."""
    sizes: list[int] = []
    values = batches.values

    def counted(*given: object) -> tuple[object, ...]:
        made = values(*given)  # type: ignore[arg-type]
        snapshot = made[7]
        sizes.append(sum(len(str(value)) for value in made) - len(str(snapshot)))
        return made

    monkeypatch.setattr("salience.store.journal.values", counted)
    events = many(session_id, files=500, turns=1_500)
    await recorder.take(events[:1_200], None)
    written: dict[int, int] = {}
    for at in range(1_200, len(events), 2):
        await recorder.take(events[at : at + 2], None)
        written[at // 2] = sizes[-1]
    large = recorder.projection.save().state.model_dump_json()
    assert len(large) > 200_000
    assert max(written.values()) < 8_000
    early, late = (sum(written[turn] for turn in turns) for turns in (range(620, 660), range(1_440, 1_480)))
    assert late <= 1.1 * early
    calls = [artifact for artifact in recorder.projection.state.artifacts if artifact.kind != "file"]
    assert len(calls) == 300
    await recorder.assert_loaded_is_folded()


async def test_a_session_of_the_former_schema_goes_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, session_id: str
) -> None:
    """Its row holds the whole fold, its state by the former rules: the state comes from its events."""
    database = f"former_{session_id.replace('-', '_')}"
    superuser = stack.info.postgres.superuser_dsn
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database} OWNER salience_owner".encode())
    all_of_them = migrations.available()
    owner = make_conninfo(stack.info.postgres.owner_dsn, dbname=database)
    with monkeypatch.context() as former:
        former.setattr(migrations, "available", lambda: all_of_them[:1])
        assert migrations.migrate(owner) == 1
    events = events_of(recorded("worker_lost"), session_id)
    projection = Projection.empty(session_id)
    rows = []
    for event in events:
        rows.append(row_of(event, projection.head, 1))
        projection.fold(event)
        projection.head = rows[-1].hash
    projection.cursor = projection.cursor.model_copy(update={"seq": len(events), "last_event_id": events[-1].event_id})
    whole = projection.save().model_dump_json(by_alias=True, exclude_none=True)
    row = {"seq": len(events), "head": projection.head, "run_id": "", "history_id": 0, "status": "active"}
    texts = {"model": "", "title": "", "created_at": "", "updated_at": ""}
    batch = Batch(projection, rows, projection.transcript.entries[:])
    made = batches.values("default", Position(0, ""), batch, batches.written(batch))
    runtime = make_conninfo(stack.info.postgres.runtime_dsn, dbname=database)
    with psycopg.connect(runtime) as connection:
        connection.execute(
            "SELECT record_projection(%s, %s, %s, %s, %s::json, %s, %s::json, %s::json, %s::json, %s::json, %s::json, %s)",
            (*made[:4], json.dumps({**row, **texts}), whole, *made[9:], True),
        )
    assert migrations.migrate(owner) == all_of_them[-1][0]
    postgres = Postgres(runtime)
    recorder = Recorder(postgres, Journal(postgres, "default"), session_id)
    recorder.projection = projection
    await recorder.assert_loaded_is_folded()
    follow = many(session_id, files=3, turns=2)
    start = len(events)
    await recorder.take([event.model_copy(update={"seq": start + event.seq}) for event in follow], None)
    await recorder.assert_loaded_is_folded()
    await postgres.close()


async def test_a_state_that_is_known_is_brought_up_to_date(recorder: Recorder, session_id: str) -> None:
    """From the known one on where the journal still has its row, else from what is stored."""
    events = many(session_id, files=3, turns=6)
    half = len(events) // 2
    await recorder.take(events[:half], None)
    known = await recorder.journal.state(session_id)
    await recorder.take(events[half:], None)
    marked = replace(known, state=known.state.model_copy(update={"version": 10_000}))
    later = await recorder.journal.state(session_id, marked)
    assert later.state.version == 10_000 + recorder.projection.state.version - known.state.version
    for other in (replace(marked, head="0" * 64), replace(marked, seq=len(events) + 1)):
        found = await recorder.journal.state(session_id, other)
        assert found == StateAt(len(events), recorder.projection.head, recorder.projection.state)
    assert await recorder.journal.state("unheard-of", None) == StateAt(0, "", State(session_id="unheard-of"))


async def test_what_checking_a_citation_reads_does_not_grow_with_the_session(
    stack: Stack, postgres: Postgres, recorder: Recorder, session_id: str
) -> None:
    """Calls, messages and events are found by index: few rows are read of thousands (spec PRJ-3)."""
    read: list[int] = []
    sources = Sources(postgres, recorder.journal, "default")
    built = next(e for e in events_of(recorded("tools"), session_id) if isinstance(e.payload, ev.ContextBuilt))
    for turns in (60, 1_200):
        events = called(session_id, turns)
        for at in range(recorder.projection.cursor.seq, len(events), 60):
            await recorder.take(events[at : at + 60], built)
        asked = {
            f"call_{turns // 2}": True,
            events[5].event_id: True,
            f"r{len(events) - 4}": True,
            f"{turns // 2:064x}": True,
            f"blob:{turns // 3:064x}": True,
            f"{turns // 4:063x}f": True,
            "call_none": False,
            "f" * 64: False,
        }
        known = await sources.known(session_id, State(session_id=session_id), asked)
        assert known == {ref for ref, there in asked.items() if there}
        read.append(rows_read(stack, session_id, list(asked)))
    assert read[1] <= 2 * len(asked)


def rows_read(stack: Stack, session_id: str, refs: list[str]) -> int:
    """Rows that one look-up reads of tables, through indexes or not."""
    given = {"tenant": "default", "session": session_id, "refs": refs}
    with psycopg.connect(stack.info.postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute("ANALYZE events, messages, artifacts")  # as autovacuum does within a minute
    with psycopg.connect(stack.info.postgres.superuser_dsn) as connection:
        connection.execute(KNOWN, given)
        for ref in refs:
            for query in (BY_ID, BY_HASH, SHOWN):
                digits = ref.removeprefix("blob:")
                connection.execute(query, {**given, "name": digits, "beyond": f"{digits}g"})
        row = connection.execute(
            "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
            " WHERE relname IN ('events', 'messages', 'artifacts')"
        ).fetchone()
    assert row is not None
    return int(row[0])


def called(session_id: str, turns: int) -> list[ev.Event]:
    """The events of a session whose every turn is one call with an output of its own, shown in part."""
    events: list[ev.Event] = []

    def add(payload: ev.Payload, slot: str) -> None:
        seq = len(events) + 1
        events.append(
            ev.Event(
                event_id=f"run:{seq}:{slot}",
                session_id=session_id,
                run_id="run",
                seq=seq,
                timestamp="2026-01-01T00:00:00.000000Z",
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
            )
        )

    for turn in range(turns):
        call = f"call_{turn}"
        add(ev.ToolCallRequested(tool_call_id=call, name="read_file", index=0, response_ref="e" * 64), f"asked:{call}")
        shown, whole = f"{turn:063x}f", f"{turn:064x}"
        done = ev.ToolCallFinished(tool_call_id=call, name="read_file", output_ref=shown, full_ref=whole)
        add(done, f"ended:{call}")
    return events
