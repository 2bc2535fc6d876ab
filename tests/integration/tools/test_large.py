"""A result of any size stays whole as an artifact, small for the model, and does not fill the worker's memory (EVT-6)."""

from __future__ import annotations

import resource

import pytest

from tests.integration.tools.scene import Scene

MB = 1_000_000
LARGE = 200 * MB
LINES = LARGE // 20
MANY = f"yes 'nineteen characters' | head -n {LINES}"


def peak() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.timeout(300)
async def test_a_command_that_says_200_mb(scene: Scene) -> None:
    scene.tool_timeout_s = 200
    before = peak()
    outcome = await scene.run("run_command", {"command": MANY}, "call_1_0")
    assert (outcome.ok, outcome.exit_code, outcome.output_bytes, outcome.truncated) == (True, 0, LARGE, True)
    assert outcome.full_ref is not None
    assert scene.blobs.path(outcome.full_ref).stat().st_size == LARGE
    seen = await scene.seen(outcome)
    assert len(seen.encode()) <= scene.max_bytes
    assert seen.startswith("nineteen characters\n")
    assert seen.endswith("nineteen characters\n[exit code 0]\n")
    assert f"blob:{outcome.full_ref}" in seen

    await scene.record_outcome(outcome)
    for args in ({"start_line": LINES - 3}, {"offset": LARGE - 10}, {"pattern": "^nine", "start_line": LINES - 3}):
        part = await scene.run("read_artifact", {"ref": outcome.full_ref, **args}, "call_2_0")
        assert part.ok
        assert part.output_bytes <= scene.max_bytes
        assert "acters\n" in await scene.seen(part)
    # Two copies of it at a time, whatever is done with it: as text or as lines it would be five.
    assert peak() - before < 3 * LARGE


@pytest.mark.timeout(300)
async def test_a_file_of_200_mb_is_read_in_parts(scene: Scene) -> None:
    with (scene.root / "large.txt").open("wb") as file:
        for _ in range(LARGE // MB):
            file.write(b"nineteen characters\n" * (MB // 20))
    before = peak()
    outcome = await scene.run("read_file", {"path": "large.txt", "start_line": LINES - 1})
    assert (await scene.seen(outcome)).endswith(f"{LINES}\tnineteen characters\n")
    assert outcome.effects[0].size_bytes == LARGE
    assert peak() - before < 2 * LARGE


@pytest.mark.parametrize("bad", [b"\xff", b"\x00", "ä".encode()])
async def test_what_is_large_is_cut_as_what_is_small(scene: Scene, bad: bytes) -> None:
    (scene.root / "bad").write_bytes(bad * 5_000_000)
    outcome = await scene.run("run_command", {"command": "cat bad"})
    seen = await scene.seen(outcome)
    assert len(seen.encode()) <= scene.max_bytes
    assert "\x00" not in seen
    assert outcome.full_ref is not None
    assert await scene.blobs.get(outcome.full_ref) == bad * 5_000_000


@pytest.mark.parametrize("batch", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("name", ["read_file", "run_command", "search", "read_artifact"])
async def test_the_calls_of_an_answer_share_the_room(scene: Scene, name: str, batch: int) -> None:
    (scene.root / "a.txt").write_text("a line of the file\n" * 10_000)
    args = {
        "read_file": {"path": "a.txt"},
        "run_command": {"command": "cat a.txt"},
        "search": {"pattern": "line", "limit": 1_000},
        "read_artifact": {"ref": "call_0_0"},
    }[name]
    await scene.record_outcome(await scene.run("run_command", {"command": "cat a.txt"}, "call_0_0"))
    outcome = await scene.run(name, args, "call_1_0", batch=batch)
    size = len((await scene.seen(outcome)).encode())
    most = max(512, scene.max_bytes * 2 // max(2, batch))
    assert outcome.ok
    assert most // 2 < size <= most
    assert batch * size <= max(2 * scene.max_bytes, batch * 512)
