"""A session leaves home A as a file, goes on in B, then in C, and nothing of it changes on the way (spec EVT-7, EVT-2b)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.verification import Verification
from salience.client import Salience
from salience.errors import NotFound, UsageError
from salience.log.chain import Row, event_of, row_of
from salience.log.export import Writer
from salience.model.artifact import AccessPolicy
from salience.model.event import Anchor
from salience.model.export import Header
from salience.settings import Settings
from salience.store.blobs import FileBlobs
from salience.store.exports import Export
from tests.conftest import Scripted, ended, until
from tests.integration.homes import home, verified


async def exported(salience: Salience, session_id: str, path: Path) -> bytes:
    written = salience.export(session_id)
    with path.open("wb") as file:
        async for line in written.lines():
            file.write(line)
    assert not written.outcome.missing
    return path.read_bytes()


READ = {"tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}]}
EDIT = {"tool_calls": [{"name": "edit_file", "args": {"path": "a.txt", "old_text": "hello", "new_text": "bye"}}]}


@pytest.mark.timeout(240)
async def test_from_home_to_home(
    settings: Settings, salience: Salience, scripted: Scripted, workspace: Path, session_id: str, tmp_path: Path
) -> None:
    (workspace / "a.txt").write_text("hello\n")
    (workspace / "AGENTS.md").write_text("Be brief.\n")
    config = scripted([READ, EDIT, {"text": "first words"}, {"text": "second words"}, {"text": "third words"}])
    await salience.start(config, "change the file " + "x" * 40_000, session_id=session_id)
    await ended(salience, session_id)
    first = await exported(salience, session_id, tmp_path / "a.jsonl")
    assert first == await exported(salience, session_id, tmp_path / "again.jsonl")
    assert max(map(len, first.split(b"\n"))) < 2_000_000

    async with home(settings, tmp_path) as b:
        done = await b.import_file(tmp_path / "a.jsonl")
        assert (done.status, done.session_id, done.faults) == ("imported", session_id, ())
        assert (await b.import_file(tmp_path / "a.jsonl")).status == "already_imported"
        theirs, ours = (await salience.state(session_id), await b.state(session_id))
        assert ours.goal == theirs.goal
        assert ours.files.keys() == theirs.files.keys()
        assert (await b.stats(session_id)) == (await salience.stats(session_id))
        assert (await b.session(session_id)).status == "completed"
        report = await verified(b, session_id)
        assert report.ok, report.findings
        assert (report.bundles, report.bundles_not_comparable, report.runs_imported) == (3, 0, 1)
        saw = await b.context(session_id, messages=True)
        seen = await salience.context(session_id, messages=True)
        assert (saw.bundle_hash, saw.messages) == (seen.bundle_hash, seen.messages)
        ids = {event.event_id async for event in b.events(session_id)}
        assert all(event_id.startswith(f"import:{done.file_ref}:") for event_id in ids)
        assert {ref for segment in saw.segments for ref in segment.source_refs if ":" in ref} & ids
        assert await exported(b, session_id, tmp_path / "b.jsonl") == first

        await b.say(session_id, "and now?")
        events = await ended(b, session_id)
        assert len({event.event_id for event in events}) == len(events)
        assert (await b.result(session_id)).final_preview == "second words"
        went_on = await b.context(session_id, messages=True)
        told = [m for m in went_on.messages if m.role in ("user", "assistant", "tool")]
        assert "first words" in str(told)
        assert "bye" in str(told)
        report = await verified(b, session_id)
        assert report.ok, report.findings
        assert (report.runs, report.runs_imported, report.bundles, report.bundles_not_comparable) == (2, 1, 4, 0)
        assert [run.generation for run in await b.journal.runs(session_id)] == [1, 2]
        second = await exported(b, session_id, tmp_path / "c.jsonl")
        assert second.startswith(first)
        assert len(second) > len(first)
        b_events = [event.plain() async for event in b.events(session_id)]

        async with home(settings, tmp_path) as c:
            done = await c.import_file(tmp_path / "c.jsonl")
            assert (done.status, done.faults) == ("imported", ())
            report = await verified(c, session_id)
            assert report.ok, report.findings
            assert (report.bundles, report.bundles_not_comparable) == (4, 0)
            assert await exported(c, session_id, tmp_path / "d.jsonl") == second
            c_events = [event.plain() async for event in c.events(session_id)]
            assert [event["type"] for event in c_events] == [event["type"] for event in b_events]
            await c.say(session_id, "once more")
            await ended(c, session_id)
            report = await verified(c, session_id)
            assert report.ok, report.findings
            assert await exported(c, session_id, tmp_path / "e.jsonl") != second
            assert (await c.import_file(tmp_path / "e.jsonl")).status == "same_session"


async def small(salience: Salience, scripted: Scripted, session_id: str, path: Path) -> bytes:
    """A session of one answer, exported."""
    await salience.start(scripted([{"text": "an answer"}]), "a task", session_id=session_id)
    await ended(salience, session_id)
    return await exported(salience, session_id, path)


@asynccontextmanager
async def store(settings: Settings, folder: Path) -> AsyncIterator[Salience]:
    """Another tenant with other blobs, without a worker: enough to import into."""
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    own = settings.model_copy(update={"tenant": name, "blob_dir": str(folder / name)})
    async with await Salience.connect(own) as connected:
        yield connected


async def test_another_session_of_the_same_id_is_refused(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    await small(salience, scripted, f"{session_id}-2", tmp_path / "b.jsonl")
    same = await salience.import_file(tmp_path / "a.jsonl")
    assert (same.status, same.session_id) == ("same_session", session_id)
    with pytest.raises(UsageError, match="is another one"):
        await salience.import_file(tmp_path / "b.jsonl", session_id=session_id)
    new = await salience.import_file(tmp_path / "b.jsonl", session_id=f"{session_id}-3")
    assert new.status == "imported"
    with pytest.raises(UsageError, match="imported from another file"):
        await salience.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-3")
    events = [event async for event in salience.events(f"{session_id}-3")]
    assert {event.session_id for event in events} == {f"{session_id}-3"}
    report = await verified(salience, f"{session_id}-3")
    assert (report.ok, report.bundles) == (True, 1), report.findings
    assert await exported(salience, f"{session_id}-3", tmp_path / "c.jsonl") == (tmp_path / "b.jsonl").read_bytes()


async def test_two_imports_at_once_are_one(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    async with store(settings, tmp_path) as one, await Salience.connect(one.settings) as two:
        done = await asyncio.gather(
            *(each.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-there") for each in (one, two, one, two))
        )
        assert sorted(result.status for result in done) == ["already_imported"] * 3 + ["imported"]
        assert (await verified(one, f"{session_id}-there")).ok


async def test_it_works_in_another_folder_and_with_a_session_id_of_its_own(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str, tmp_path: Path
) -> None:
    """The folder of the exported session is gone: the import names another, which holds from the next context on."""
    config = scripted([{"text": "one"}, READ, {"text": "two"}])
    await salience.start(config, "a task", session_id=session_id)
    await ended(salience, session_id)
    await exported(salience, session_id, tmp_path / "a.jsonl")
    shutil.rmtree(workspace)
    gone, moved, elsewhere = f"{session_id}-gone", f"{session_id}-moved", tmp_path / "elsewhere"
    await salience.import_file(tmp_path / "a.jsonl", session_id=gone)
    await salience.say(gone, "go on")
    assert (await salience.result(gone)).reason == "workspace_gone"
    with pytest.raises(NotFound):
        await salience.import_file(tmp_path / "a.jsonl", session_id=moved, cwd=elsewhere)
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("what stands elsewhere\n")
    done = await salience.import_file(tmp_path / "a.jsonl", session_id=moved, cwd=elsewhere)
    assert done.cwd == str(elsewhere)
    with pytest.raises(UsageError, match="imported already"):
        await salience.import_file(tmp_path / "a.jsonl", session_id=moved, cwd=tmp_path)
    await salience.say(moved, "go on")
    await ended(salience, moved)
    assert (await salience.session(moved)).cwd == str(elsewhere)
    assert "what stands elsewhere" in str((await salience.context(moved, messages=True)).messages)
    report = await verified(salience, moved)
    assert (report.ok, report.bundles, report.bundles_not_comparable) == (True, 3, 0), report.findings
    second = await exported(salience, moved, tmp_path / "b.jsonl")
    again = await salience.import_file(tmp_path / "b.jsonl", session_id=f"{moved}-again")
    assert again.faults == ()
    assert again.cwd == str(elsewhere)
    report = await verified(salience, f"{moved}-again")
    assert (report.ok, report.bundles, report.bundles_not_comparable) == (True, 3, 0), report.findings
    assert await exported(salience, f"{moved}-again", tmp_path / "c.jsonl") == second


async def test_resume_and_close_and_pause_of_an_imported_session(
    salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    new = f"{session_id}-new"
    await salience.import_file(tmp_path / "a.jsonl", session_id=new)
    assert await salience.close(new) == "closed"
    with pytest.raises(NotFound, match="not running"):
        await salience.interrupt(new)
    # The same message id is not taken twice, also when it was delivered before the session came here.
    prompt = (await salience.journal.transcript(new))[0]
    again = await salience.say(new, "a task", message_id=prompt.message_id)
    assert again.accepted == "duplicate"
    assert await salience.resume(new) == "started"
    await ended(salience, new)
    assert (await verified(salience, new)).ok


async def test_a_session_exported_while_it_ran_goes_on(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str, tmp_path: Path
) -> None:
    """What is recorded of it goes on elsewhere; the call that was under way is made there again."""
    (workspace / "a.txt").write_text("hello\n")
    await salience.start(scripted([READ, {"delay_s": 2, "text": "went on"}]), "a task", session_id=session_id)
    await until(lambda: _has(salience, session_id, "ToolCallFinished"))
    await exported(salience, session_id, tmp_path / "a.jsonl")
    await salience.close(session_id)
    new = f"{session_id}-new"
    await salience.import_file(tmp_path / "a.jsonl", session_id=new)
    assert not await _has(salience, new, "SessionEnded")
    await salience.say(new, "go on")
    await ended(salience, new)
    assert (await salience.result(new)).final_preview == "went on"
    assert [e.text for e in await salience.journal.transcript(new) if e.kind == "prompt"] == ["a task", "go on"]
    report = await verified(salience, new)
    assert report.ok, report.findings


async def _has(salience: Salience, session_id: str, kind: str) -> bool:
    return kind in [event.type async for event in salience.events(session_id)]


async def test_the_journal_is_made_again_from_the_file(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    """Every table is lost, and a blob too: the file alone brings all of it back, under the same heads."""
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    async with store(settings, tmp_path) as there:
        await there.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-there")
        position = await there.journal.position(f"{session_id}-there")
        rows = [row async for row in there.journal.rows(f"{session_id}-there")]
        context = await there.context(f"{session_id}-there")
        lost = there.settings.model_copy(update={"tenant": f"{there.settings.tenant}-again"})
        answers = [
            event async for event in there.events(f"{session_id}-there") if event.type == "ModelResponseReceived"
        ]
        response = answers[0].payload.plain()["response_ref"]
        FileBlobs(lost.blobs).path(response).unlink()
        async with await Salience.connect(lost) as again:
            with pytest.raises(NotFound):
                await verified(again, f"{session_id}-there")
            verification = Verification(again.postgres, again.journal, again.blobs, None)
            assert await verification.rebuild(f"{session_id}-there") == len(rows)
            assert await again.journal.position(f"{session_id}-there") == position
            assert [row async for row in again.journal.rows(f"{session_id}-there")] == rows
            assert (await again.context(f"{session_id}-there")).plain() == context.plain()
            report = await verified(again, f"{session_id}-there")
            assert (report.ok, report.runs_imported) == (True, 1), report.findings


async def test_a_changed_row_or_file_is_found(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    async with store(settings, tmp_path) as there:
        done = await there.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-there")
        path = FileBlobs(there.settings.blobs).path(done.file_ref)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"a task", b"a tusk"))
        report = await verified(there, f"{session_id}-there")
        assert [finding.rule for finding in report.findings] == ["EVT-2b"]
        path.unlink()
        report = await verified(there, f"{session_id}-there")
        assert [finding.rule for finding in report.findings] == ["EVT-2b"]


async def test_a_damaged_file_is_imported_as_far_as_it_goes_and_goes_on(
    salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    turns = [READ, {"text": "one"}, {"text": "two"}]
    await salience.start(scripted(turns), "a task", session_id=session_id)
    await ended(salience, session_id)
    data = await exported(salience, session_id, tmp_path / "a.jsonl")
    lines = data.splitlines(keepends=True)
    cut, edited = tmp_path / "cut.jsonl", tmp_path / "edited.jsonl"
    cut.write_bytes(b"".join(lines[:-3]) + lines[-3][:-10])
    edited.write_bytes(data.replace(b'"text":"a task"', b'"text":"a tusk"'))
    for name, path in (("cut", cut), ("edited", edited)):
        new = f"{session_id}-{name}"
        done = await salience.import_file(path, session_id=new)
        assert done.faults
        assert done.events == len([line for line in lines if b'"kind":"event"' in line]) - (2 if name == "cut" else 1)
        assert (await salience.import_file(path, session_id=new)).status == "already_imported"
        report = await verified(salience, new)
        assert report.ok, report.findings
        assert report.import_faults == done.faults
        assert await exported(salience, new, tmp_path / "same.jsonl") == path.read_bytes()
        await salience.say(new, "go on")
        await ended(salience, new)
        report = await verified(salience, new)
        assert report.ok, report.findings
        went_on = await exported(salience, new, tmp_path / f"{name}-2.jsonl")
        assert went_on.startswith(path.read_bytes())
        again = await salience.import_file(tmp_path / f"{name}-2.jsonl", session_id=f"{new}-again")
        assert {fault.message for fault in done.faults if "cut" not in fault.message} <= {
            f.message for f in again.faults
        }
        report = await verified(salience, f"{new}-again")
        assert report.ok, report.findings
        theirs = [(e.type, e.seq, e.payload) async for e in salience.events(new) if e.type != "ContextBuilt"]
        ours = [(e.type, e.seq, e.payload) async for e in salience.events(f"{new}-again") if e.type != "ContextBuilt"]
        assert [each[:2] for each in ours] == [each[:2] for each in theirs]


async def test_without_blobs_it_can_be_read_and_says_what_it_lacks(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    written = salience.export(session_id, blobs=False)
    (tmp_path / "bare.jsonl").write_bytes(b"".join([line async for line in written.lines()]))
    assert written.outcome.blobs == 0
    async with store(settings, tmp_path) as there:
        done = await there.import_file(tmp_path / "bare.jsonl", session_id=f"{session_id}-there")
        assert (done.left_out, done.faults, done.blobs) == (True, (), 0)
        assert (await there.state(f"{session_id}-there")).goal.user_goal == "a task"
        report = await verified(there, f"{session_id}-there")
        assert report.ok, report.findings
        assert report.blobs_left_out > 0
        assert (report.bundles, report.bundles_not_comparable) == (0, 1)
        with pytest.raises(NotFound, match="no such bundle"):
            await there.context(f"{session_id}-there")
        with pytest.raises(UsageError, match="blobs and all"):
            _ = [line async for line in there.export(f"{session_id}-there", blobs=False).lines()]


async def test_a_sensitive_artifact_stays_and_is_named(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await salience.start(scripted([{"text": "ok"}]), "secret " * 6_000, session_id=session_id)
    await ended(salience, session_id)
    (artifact,) = await salience.artifacts(session_id)
    async with salience.postgres.connection() as connection:
        policy = artifact.model_copy(update={"access_policy": AccessPolicy(sensitive=True)})
        await connection.execute(
            "UPDATE artifacts SET body = %s WHERE session_id = %s", (policy.model_dump_json(), session_id)
        )
    written = salience.export(session_id)
    data = b"".join([line async for line in written.lines()])
    assert written.outcome.sensitive == (artifact.content_hash,)
    assert b'"why":"sensitive"' in data
    assert base64.b64encode(b"secret secret")[:12] not in data
    (tmp_path / "a.jsonl").write_bytes(data)
    async with store(settings, tmp_path) as there:
        done = await there.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-there")
        assert (done.faults, done.omitted) == ((), (artifact.content_hash,))
        report = await verified(there, f"{session_id}-there")
        assert (report.ok, report.blobs_left_out) == (True, 1), report.findings
    async with salience.postgres.connection() as connection:
        allowed = AccessPolicy(sensitive=True, allowed_scopes=("export",))
        policy = artifact.model_copy(update={"access_policy": allowed})
        await connection.execute(
            "UPDATE artifacts SET body = %s WHERE session_id = %s", (policy.model_dump_json(), session_id)
        )
    written = salience.export(session_id)
    assert b'"why"' not in b"".join([line async for line in written.lines()])


async def test_a_lost_blob_is_named_by_both_sides(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    async with store(settings, tmp_path) as there:
        await there.import_file(tmp_path / "a.jsonl", session_id=f"{session_id}-there")
        await there.postgres.close()
    await salience.start(scripted([{"text": f"words of {session_id}"}]), "x", session_id=f"{session_id}-2")
    await ended(salience, f"{session_id}-2")
    events = [event async for event in salience.events(f"{session_id}-2")]
    (ref,) = [e.payload.response_ref for e in events if e.type == "ModelResponseReceived"]  # type: ignore[attr-defined]
    FileBlobs(salience.settings.blobs).path(ref).unlink()
    written = salience.export(f"{session_id}-2")
    (tmp_path / "b.jsonl").write_bytes(b"".join([line async for line in written.lines()]))
    assert written.outcome.missing == (ref,)
    async with store(settings, tmp_path) as there:
        done = await there.import_file(tmp_path / "b.jsonl", session_id=f"{session_id}-there")
        assert ["was missing already" in fault.message for fault in done.faults] == [True]


@pytest.mark.timeout(300)
async def test_a_blob_of_100_mb_is_never_in_memory(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str, tmp_path: Path
) -> None:
    """Through a file and back, the process grows by a few pieces and not by the blob."""
    await small(salience, scripted, session_id, tmp_path / "a.jsonl")
    data = os.urandom(1_000_000) * 100
    ref = await salience.blobs.put(data)
    del data
    rows = [row async for row in salience.journal.rows(session_id)]
    prompt = json.loads(rows[1].payload or "")
    assert prompt["text"] == "a task"
    big = tmp_path / "big.jsonl"
    with big.open("wb") as file:
        writer, head = Writer(), ""
        made = _with_payload(rows, 1, {**prompt, "original_ref": ref})
        anchor = {"seq": len(made), "head": made[-1].hash}
        header = {"salience_export": 1, "session_id": session_id, "decoder_versions": [1], "head": anchor}
        base = {"base": {"seq": 0, "head": ""}, "blobs": "included"}
        file.write(writer.header(Header.model_validate({**header, **base})))
        export = Export(salience.journal, salience.blobs, session_id)
        export._writer = writer
        for row in made:
            async for line in export._named(json.loads(row.payload or "{}")):
                file.write(line)
            file.write(writer.event(row, head))
            head = row.hash
        file.write(writer.end())
    assert big.stat().st_size > 133_000_000
    async with store(settings, tmp_path) as there:
        tracemalloc.start()
        done = await there.import_file(big, session_id=f"{session_id}-there")
        written = there.export(f"{session_id}-there")
        found = hashlib.sha256()
        async for line in written.lines():
            found.update(line)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.hexdigest() == hashlib.sha256(big.read_bytes()).hexdigest()
        assert done.faults == ()
        assert peak < 40_000_000
        assert FileBlobs(there.settings.blobs).path(ref).stat().st_size == 100_000_000


def _with_payload(rows: list[Row], index: int, payload: dict[str, Any]) -> list[Row]:
    """The rows of a log in which one payload is another."""
    made: list[Row] = []
    for number, row in enumerate(rows):
        event = event_of(row) if number != index else event_of(replace(row, payload=json.dumps(payload)))
        if event.type == "ContextBuilt":
            seq = event.payload.source.seq  # type: ignore[attr-defined]
            anchored = event.payload.model_copy(update={"source": Anchor(seq=seq, head=made[seq - 1].hash)})
            event = event.model_copy(update={"payload": anchored})
        made.append(row_of(event, made[-1].hash if made else "", 1))
    return made


@pytest.mark.timeout(240)
async def test_a_compacted_session_moves_with_its_checkpoints(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str, tmp_path: Path
) -> None:
    """What stands for what is read from the record; rolling back is a run of its own (spec CMP-2, EVT-2b)."""
    turns = [{"text": f"{n}", "tool_calls": [{"name": "read_file", "args": {"path": f"f{n}.txt"}}]} for n in range(30)]
    for n in range(30):
        (workspace / f"f{n}.txt").write_text(f"word{n} " * 200)
    await salience.start(
        scripted([*turns, {"text": "read"}, {"text": "end"}], window=10_000), "x", session_id=session_id
    )
    events = await ended(salience, session_id)
    compacted = [event.seq for event in events if event.type == "CompactionCompleted"]
    assert compacted
    await exported(salience, session_id, tmp_path / "a.jsonl")
    new = f"{session_id}-new"
    assert (await salience.import_file(tmp_path / "a.jsonl", session_id=new)).faults == ()
    report = await verified(salience, new)
    assert report.ok, report.findings
    assert (report.compactions, report.bundles_not_comparable) == (len(compacted), 0)
    assert report.bundles == (await verified(salience, session_id)).bundles
    await salience.say(new, "go on")
    await ended(salience, new)
    assert (await salience.rollback(new)).refused or (await salience.compactions(new))[
        -1
    ].type == "CompactionRolledBack"
    await salience.result(new)
    report = await verified(salience, new)
    assert report.ok, report.findings
