"""`read_artifact`: any size in parts that join, this session's own blobs only, and a changed byte is said (EVT-6)."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from salience.model import event as ev
from salience.settings import Settings
from tests.integration.tools.scene import Scene

WIDE = "ä" * 3_000 + "\n"


@pytest.fixture
async def long(scene: Scene) -> str:
    """The hash of a long output that the session has seen cut."""
    outcome = await scene.run("run_command", {"command": "seq -f 'line %.0f' 200000"}, "call_1_0")
    assert outcome.full_ref is not None
    await scene.record_outcome(outcome)
    return outcome.full_ref


async def read(scene: Scene, **args: object) -> str:
    outcome = await scene.run("read_artifact", args, f"c{uuid.uuid4().hex[:8]}")
    return await scene.seen(outcome)


async def test_every_name_a_model_is_told_reads_it(scene: Scene, long: str) -> None:
    first = await read(scene, ref=f"blob:{long}")
    assert first.startswith(f"blob:{long[:16]}… (output:call_1_0, run_command, ")
    assert ", lines 1-" in first
    assert " of 200000)\n" in first.partition("\n")[0] + "\n"
    for name in (long, f"blob {long}", long[:16], "call_1_0", "output:call_1_0", f" {long} "):
        assert await read(scene, ref=name) == first


async def test_lines_come_in_parts_that_join(scene: Scene, long: str) -> None:
    scene.max_bytes = 2_000
    lines: list[str] = []
    start = 199_800
    while True:
        text = await read(scene, ref=long, start_line=start)
        assert len(text.encode()) <= 2_000
        lines += [line.split("\t")[1] for line in text.splitlines() if "\t" in line]
        if "go on with start_line" not in text:
            break
        start = int(text.rstrip().rstrip("]").rsplit(" ", 1)[1])
    assert lines == [f"line {number}" for number in range(199_800, 200_001)]
    assert "\t" + "line 7\n" in await read(scene, ref=long, start_line=7, end_line=7)


async def test_bytes_come_in_parts_that_join_at_characters(scene: Scene) -> None:
    scene.max_bytes = 1_000
    ref = await scene.blobs.put(WIDE.encode())
    await scene.record(ev.UserPromptSubmitted(message_id="m1", text="ä", text_ref=ref, delivery="start"))
    found, offset = "", 0
    while True:
        text = await read(scene, ref=ref, offset=offset)
        assert len(text.encode()) <= 1_000
        body = text.split("\n", 1)[1]
        found += body.split("\n[")[0] if "go on with offset" in body else body
        if "go on with offset" not in text:
            break
        offset = int(text.rstrip().rstrip("]").rsplit(" ", 1)[1])
    assert found == WIDE
    assert "bytes 10-14)\nää\n[" in await read(scene, ref=ref, offset=10, limit=5)
    assert "5000 more bytes" not in await read(scene, ref=ref, offset=6_001)
    assert "beyond its end" in await read(scene, ref=ref, offset=7_000)


async def test_bytes_that_are_no_text_are_shown_within_bounds(scene: Scene) -> None:
    scene.max_bytes = 1_000
    ref = await scene.blobs.put(b"\xff\x00\x80" * 5_000)
    await scene.record(ev.UserPromptSubmitted(message_id="m1", text="?", text_ref=ref, delivery="start"))
    for args in ({"offset": 0}, {}, {"pattern": "."}):
        text = await read(scene, ref=ref, **args)
        assert len(text.encode()) <= 1_000
        assert "\x00" not in text


async def test_a_pattern_finds_lines_with_their_surroundings(scene: Scene, long: str) -> None:
    assert (await read(scene, ref=long, pattern="^line 1234.$")).splitlines()[1:] == [
        f"{number}:line {number}" for number in range(12_340, 12_350)
    ]
    around = await read(scene, ref=long, pattern="line 777$", context=1, start_line=500, end_line=1_000)
    assert around.splitlines()[1:] == ["776-line 776", "777:line 777", "778-line 778"]
    assert "no line matches" in await read(scene, ref=long, pattern="line 777$", start_line=1_000)
    many = await read(scene, ref=long, pattern="line")
    assert "more lines match: go on with start_line " in many
    assert "ripgrep refused" in await read(scene, ref=long, pattern="(")
    # Exponential for an engine that goes back; linear for this one.
    assert "no line matches" in await read(scene, ref=long, pattern="(l+)+(i+)+(n*)*$x")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"offset": 0, "start_line": 1}, "offset counts bytes and does not go with start_line"),
        ({"limit": 5}, "limit needs offset"),
        ({"context": 5}, "context needs pattern"),
        ({"start_line": 300_000}, "has 200000 lines"),
    ],
)
async def test_refuses_with_what_to_do(scene: Scene, long: str, args: dict[str, object], words: str) -> None:
    assert words in await read(scene, ref=long, **args)


async def test_another_sessions_blobs_are_not_there(
    scene: Scene, long: str, settings: Settings, tmp_path: Path
) -> None:
    async with Scene(tmp_path, settings) as other:
        assert (await other.blobs.get(long)).startswith(b"line 1\n")
        for name in (f"blob:{long}", long[:16], "call_1_0", "output:call_1_0"):
            outcome = await other.run("read_artifact", {"ref": name})
            assert (outcome.ok, outcome.kind) == (False, "error")
            assert "this session has no artifact" in await other.seen(outcome)
    assert "has no artifact" in await read(scene, ref="../../etc/passwd")
    assert "has no artifact" in await read(scene, ref=long[:8])
    assert "has no artifact" in await read(scene, ref="%")


async def test_a_call_of_the_same_answer_has_nothing_to_read_yet(scene: Scene) -> None:
    await scene.run("run_command", {"command": "seq 100000"}, "call_1_0")
    assert "a call from an earlier turn" in await read(scene, ref="call_1_0")


async def test_changed_and_lost_bytes_are_said(scene: Scene, long: str) -> None:
    place = scene.blobs.path(long)
    data = place.read_bytes()
    place.write_bytes(b"L" + data[1:])
    fresh = type(scene.blobs)(scene.folder / "blobs")
    scene.activities._blobs = fresh  # pyright: ignore[reportPrivateUsage]
    outcome = await scene.run("read_artifact", {"ref": long}, "c8")
    assert (outcome.ok, outcome.kind) == (False, "error")
    assert "no longer match their hash" in await scene.seen(outcome)
    place.unlink()
    assert "the store has lost" in await read(scene, ref=long)


async def test_a_masked_result_is_read_by_what_the_transcript_names(scene: Scene) -> None:
    (scene.root / "a.txt").write_text("short\n")
    outcome = await scene.run("read_file", {"path": "a.txt"}, "call_1_0")
    await scene.record_outcome(outcome)
    assert outcome.full_ref is None
    assert outcome.output_ref is not None
    assert "1\tshort" in await read(scene, ref=outcome.output_ref)
