"""Changes of one file: exact, conditional, atomic, and the same outcome however often they are started (LOOP-4)."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.tools.edit_file import rewrite
from activities.tools.result import Refused
from salience.model.tool import ToolOutcome
from tests.integration.tools.scene import Scene


@pytest.fixture
def scene(scene: Scene) -> Scene:
    (scene.root / "a.py").write_bytes(b"def f():\n    return 1\n")
    return scene


def edit(old: str, new: str, **more: Any) -> dict[str, Any]:
    return {"path": "a.py", "old_text": old, "new_text": new, **more}


def undated(outcome: ToolOutcome) -> ToolOutcome:
    return outcome.model_copy(update={"duration_ms": 0})


async def test_edit_declares_what_it_did(scene: Scene) -> None:
    before, after = b"def f():\n    return 1\n", b"def f():\n    return 2\n"
    outcome = await scene.run("edit_file", edit("return 1", "return 2"))
    assert (scene.root / "a.py").read_bytes() == after
    assert (outcome.ok, outcome.diff_added, outcome.diff_removed) == (True, 1, 1)
    [effect] = outcome.effects
    assert (effect.op, effect.path) == ("modified", "a.py")
    assert (effect.before_hash, effect.after_hash) == (sha256(before).hexdigest(), sha256(after).hexdigest())
    assert await scene.blobs.get(sha256(before).hexdigest()) == before
    assert "-    return 1\n+    return 2\n" in await scene.diff(outcome)
    assert (await scene.seen(outcome)).startswith("edited a.py: replaced 1 occurrence at line 2 (sha256 ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (edit("return  1", "x"), "other white space at lines 2-2: 'return 1'"),
        (edit("return 1\n    oops", "x"), "Its line 'return 1' does, at 2"),
        (edit("nothing", "x"), "read the file again"),
        (edit("f", "x"), "old_text occurs 3 times in a.py, at lines 1, 1, 3"),
        (edit("return 1", "return 1"), "the same"),
        (edit("return 1", "x", expected_hash="0" * 8), "is not the content you named"),
        ({"path": "b.py", "old_text": "a", "new_text": "b"}, "there is no file b.py"),
        ({"path": "../b.py", "old_text": "a", "new_text": "b"}, "outside the workspace"),
    ],
)
async def test_edit_refuses_with_what_to_do(scene: Scene, args: dict[str, Any], words: str) -> None:
    (scene.root / "a.py").write_bytes(b"def f():\n    return 1\nf\n")
    outcome = await scene.run("edit_file", args)
    assert (outcome.ok, outcome.kind) == (False, "error")
    assert words in await scene.seen(outcome)
    assert (scene.root / "a.py").read_bytes() == b"def f():\n    return 1\nf\n"


async def test_edit_all_and_with_the_right_hash(scene: Scene) -> None:
    (scene.root / "a.py").write_text("x x\nx\n")
    prefix = sha256(b"x x\nx\n").hexdigest()[:12]
    outcome = await scene.run("edit_file", edit("x", "y", replace_all=True, expected_hash=prefix))
    assert "replaced 3 occurrences at lines 1, 1, 2" in await scene.seen(outcome)
    assert (scene.root / "a.py").read_text() == "y y\ny\n"


async def test_edit_keeps_line_ends_bom_and_bad_bytes(scene: Scene) -> None:
    (scene.root / "a.py").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\xff\r\n")
    assert (await scene.run("edit_file", edit("one\ntwo", "1\n2\n3"))).ok
    assert (scene.root / "a.py").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n3\r\n\xff\r\n"


async def test_write_creates_replaces_and_leaves_alone(scene: Scene) -> None:
    made = await scene.run("write_file", {"path": "new/deep/ä.txt", "content": "hi\n"}, "c1")
    assert [(e.op, e.path) for e in made.effects] == [("created", "new/deep/ä.txt")]
    assert (made.diff_added, made.diff_removed) == (1, 0)
    again = await scene.run("write_file", {"path": "new/deep/ä.txt", "content": "hi\n"}, "c2")
    assert (again.effects, again.diff_ref) == ((), None)
    other = await scene.run("write_file", {"path": "new/deep/ä.txt", "content": "ho\n"}, "c3")
    assert [e.op for e in other.effects] == ["modified"]
    assert (scene.root / "new/deep/ä.txt").read_text() == "ho\n"


@pytest.mark.parametrize("name", ["edit_file", "write_file"])
async def test_a_read_only_session_changes_nothing(scene: Scene, name: str) -> None:
    scene.mode = "read_only"
    args = edit("1", "2") if name == "edit_file" else {"path": "n", "content": "x"}
    outcome = await scene.run(name, args)
    assert outcome.kind == "denied"
    assert "read_only" in await scene.seen(outcome)
    assert sorted(path.name for path in scene.root.iterdir()) == ["a.py"]


CALLS = [("edit_file", edit("return 1", "return 2")), ("write_file", {"path": "n/w.txt", "content": "new\n"})]


@pytest.mark.parametrize(("name", "args"), CALLS)
async def test_a_retry_after_any_death_has_the_undisturbed_outcome(
    scene: Scene, tmp_path: Path, name: str, args: dict[str, Any]
) -> None:
    (tmp_path / "other").mkdir()
    async with Scene(tmp_path / "other", scene.settings) as undisturbed:
        (undisturbed.root / "a.py").write_bytes((scene.root / "a.py").read_bytes())
        expected = undated(await undisturbed.run(name, args))

    first = await scene.run(name, args)
    assert undated(first) == expected
    await scene.unsettle()  # died after the change, before the outcome was recorded
    assert undated(await scene.run(name, args, attempt=2)) == expected

    await scene.unsettle()  # died after the intent, before the change
    claim = await scene.claimed()
    assert claim is not None
    assert claim.intent is not None
    intent = claim.intent
    target = scene.root / intent["path"]
    if intent["before"] is None:
        target.unlink()
    else:
        target.write_bytes(await scene.blobs.get(intent["before"]))
    assert undated(await scene.run(name, args, attempt=3)) == expected
    assert sha256(target.read_bytes()).hexdigest() == intent["after"]


async def test_a_settled_call_is_not_run_again(scene: Scene) -> None:
    first = await scene.run("edit_file", edit("return 1", "return 2"))
    (scene.root / "a.py").write_text("mine\n")
    assert await scene.run("edit_file", edit("return 1", "return 2"), attempt=2) == first
    assert (scene.root / "a.py").read_text() == "mine\n"


async def test_a_retry_does_not_overwrite_someone_elses_change(scene: Scene) -> None:
    await scene.run("edit_file", edit("return 1", "return 2"))
    await scene.unsettle()
    (scene.root / "a.py").write_text("mine\n")
    outcome = await scene.run("edit_file", edit("return 1", "return 2"), attempt=2)
    assert "changed by someone else" in await scene.seen(outcome)
    assert (scene.root / "a.py").read_text() == "mine\n"


async def test_inspection_of_a_change_says_what_it_came_to(scene: Scene) -> None:
    await scene.run("edit_file", edit("return 1", "return 2"))
    await scene.unsettle()
    outcome = await scene.inspect("edit_file")
    assert outcome.kind == "outcome_unknown"
    assert "it was applied" in await scene.seen(outcome)


@given(
    st.text("ab \n", max_size=40), st.text("ab \n", min_size=1, max_size=4), st.text("ab \n", max_size=4), st.booleans()
)
def test_an_edit_is_pythons_replace_or_a_refusal(before: str, old: str, new: str, every: bool) -> None:
    args = {"path": "f", "old_text": old, "new_text": new, "replace_all": every}
    try:
        after = rewrite("f", args, before.encode()).after.decode()
    except Refused:
        assert old == new or before.count(old) == 0 or (before.count(old) > 1 and not every)
    else:
        assert after == before.replace(old, new)
        assert before.count(old) == 1 or every
