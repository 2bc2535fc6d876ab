"""The command line on the real stack: what it prints, where, and how it ends (spec PPL-1, PRJ-4, CTX-2)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from salience.cli import main
from salience.cli.connection import connected
from salience.client import Salience
from salience.errors import NotFound
from salience.local import Stack
from salience.store.history import Histories
from tests.conftest import until

Run = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-c", "import sys; from salience.cli import main; sys.exit(main())"]
WRITE = {"text": "I write.", "tool_calls": [{"name": "write_file", "args": {"path": "a.txt", "content": "hello\n"}}]}
SLOW = {"tool_calls": [{"name": "run_command", "args": {"command": "echo begun > begun; sleep 60"}}]}


def environment(stack: Stack) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SALIENCE_")}
    return {**kept, "SALIENCE_HOME": str(stack.home.root)}


@pytest.fixture
def cli(
    stack: Stack,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Runs `salience …` in the workspace, within this process: starting one takes seconds."""
    for name in [name for name in os.environ if name.startswith("SALIENCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SALIENCE_HOME", str(stack.home.root))
    monkeypatch.chdir(workspace)

    def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(words)
        printed = capsysbinary.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[Sequence[dict[str, Any]]], str]:
    """Makes a `script:FILE` model of turns."""

    def make(turns: Sequence[dict[str, Any]], **top: Any) -> str:
        path = tmp_path / "turns.json"
        path.write_text(json.dumps({"turns": turns, **top}))
        return f"script:{path}"

    return make


def answer(done: subprocess.CompletedProcess[bytes], code: int = 0) -> Any:
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout)


def one_error(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("salience: ")]
    return line


def test_run_follows_and_every_reading_command_reads(cli: Run, script: Any, workspace: Path, session_id: str) -> None:
    done = cli("run", "make a.txt", "--model", script([WRITE, {"text": "It is there."}]), "--session", session_id)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "It is there.\n"
    told = done.stderr.decode()
    for word in ("SessionStarted", "UserPromptSubmitted", "ToolCallFinished", "a.txt (created)", "SessionEnded"):
        assert word in told
    assert "\x1b" not in told
    assert (workspace / "a.txt").read_text() == "hello\n"

    shown = answer(cli("show", session_id, "--json"))
    assert (shown["status"], shown["end_reason"], shown["turn"]) == ("completed", "answered", 2)
    assert [entry["kind"] for entry in shown["transcript"]] == ["prompt", "response", "result", "response"]
    lines = cli("events", session_id, "--json").stdout.decode().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "SessionEnded"
    only = cli("events", session_id, "--json", "--type", "FileWritten", "--after", "2").stdout.decode().splitlines()
    assert [json.loads(line)["payload"]["path"] for line in only] == ["a.txt"]

    assert answer(cli("state", session_id, "--json"))["files"]["a.txt"]["modified"]
    assert answer(cli("state", session_id, "--at", "2", "--json"))["files"] == {}
    written = json.loads(only[0])["event_id"]
    assert "a.txt" in answer(cli("state", session_id, "--at", written, "--json"))["files"]
    assert answer(cli("stats", session_id, "--json"))["tools"]["calls"] == 1

    context = answer(cli("context", session_id, "--json"))
    assert (context["turn"], context["messages"]) == (2, [])
    assert all(segment["reason"] and segment["source_refs"] for segment in context["segments"])
    assert answer(cli("context", session_id, "--at", "2", "--json"))["turn"] == 1
    assert "make a.txt" in cli("context", session_id, "--text").stdout.decode()
    explained = cli("context", session_id).stdout.decode()
    assert "constitution" in explained
    assert "nothing was left out" in explained

    artifacts = answer(cli("artifact", "list", session_id, "--json"))
    (diff,) = [one for one in artifacts if one["kind"] == "diff"]
    assert b"+hello" in cli("artifact", "show", diff["uri"]).stdout
    assert b"+hello" in cli("artifact", "show", diff["artifact_id"], "--session", session_id).stdout
    assert diff["artifact_id"] in cli("artifact", "grep", r"^\+hel+o", session_id).stdout.decode()
    assert cli("artifact", "grep", "no such line", session_id).returncode == 1
    assert session_id in [row["session_id"] for row in answer(cli("list", "--json"))]
    for command in ("show", "events", "state", "stats", "context"):
        plain = cli(command, session_id)
        assert plain.returncode == 0, plain.stderr.decode()
        assert b"\x1b" not in plain.stdout


def test_the_same_task_is_taken_once_and_another_goes_on(cli: Run, script: Any, session_id: str) -> None:
    model = script([{"text": "one"}, {"text": "two"}])
    first = answer(cli("run", "do it", "--model", model, "--session", session_id, "--json"))
    again = answer(cli("run", "do it", "--session", session_id, "--json"))
    assert again == first
    assert answer(cli("run", "do more", "--session", session_id, "--json"))["final_text"] == "two"
    assert answer(cli("stats", session_id, "--json"))["model_calls"] == 2


def test_verbs(cli: Run, script: Any, workspace: Path, session_id: str) -> None:
    model = script([SLOW, {"text": "after"}])
    started = cli("start", "-", "--model", model, "--session", session_id, stdin=b"wait")
    assert started.stdout.decode().strip() == session_id, started.stderr.decode()
    wait_for((workspace / "begun").exists)
    assert answer(cli("interrupt", session_id, "enough", "--json"))["interrupted"] == "running_tools"
    assert answer(cli("pause", session_id, "--json"))["status"] == "paused"
    receipt = answer(cli("say", session_id, "go on", "--message-id", "m1", "--json"))
    assert (receipt["accepted"], receipt["position"]) == ("queued", 2)
    assert answer(cli("say", session_id, "go on", "--message-id", "m1", "--json"))["position"] == 2
    followed = answer(cli("resume", session_id, "--follow", "--json"))
    assert (followed["reason"], followed["final_text"]) == ("answered", "after")
    assert answer(cli("close", session_id, "--json"))["status"] == "closed"
    assert "is not running" in one_error(cli("interrupt", session_id), 3)


def test_a_process_ends_with_the_exit_code(stack: Stack, workspace: Path, script: Any) -> None:
    done = subprocess.run(
        [*COMMAND, "run", "x", "--model", script([{"text": "ok"}])],
        capture_output=True,
        check=False,
        cwd=workspace,
        env=environment(stack),
    )
    assert (done.returncode, done.stdout) == (0, b"ok\n"), done.stderr.decode()


def test_ctrl_c_stops_the_following_and_not_the_session(
    cli: Run, stack: Stack, script: Any, workspace: Path, session_id: str
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "wait", "--model", script([SLOW, {"text": "x"}]), "--session", session_id],
        stderr=subprocess.PIPE,
        cwd=workspace,
        env=environment(stack),
    )
    wait_for((workspace / "begun").exists)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"no longer following; the session goes on — salience show {session_id}" in told.decode()
    assert answer(cli("show", session_id, "--json"))["status"] == "active"
    assert cli("close", session_id).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("say", "hi"), ("interrupt",), ("pause",), ("resume",), ("close",), ("show",), ("events",), ("state",),
        ("context",), ("stats",), ("artifact list",),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_an_unknown_session(cli: Run, words: tuple[str, ...]) -> None:
    verb, *rest = words
    assert "no session 'none'" in one_error(cli(*verb.split(), "none", *rest), 3)


def test_a_failed_session_and_a_refused_backend(cli: Run, script: Any, tmp_path: Path) -> None:
    failed = cli("run", "x", "--model", script([WRITE]), "--max-model-calls", "1")
    assert "ended with step_limit" in one_error(failed, 1)
    config = tmp_path / "config.yaml"
    config.write_text("limits: {max_model_retries: 0}\n")
    refused = cli(
        "run", "x", "--model", "openai/none", "--api-base", "http://127.0.0.1:9/v1", "--config", str(config), "--json"
    )
    assert "ended with model_" in one_error(refused, 5 if b"model_unavailable" in refused.stdout else 1)


def test_a_question_is_shown_with_how_to_answer_it(cli: Run, script: Any, session_id: str) -> None:
    asks = {
        "text": "I need to know.",
        "tool_calls": [{"name": "ask_user", "args": {"question": "Which one?", "choices": ["a", "b"]}}],
    }
    model = script([asks, {"text": "So it is a."}, asks])
    done = cli("run", "choose", "--model", model, "--session", session_id)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "I need to know.\nWhich one? (a | b)\n"
    assert f'waits for your answer — salience say {session_id} "…"' in done.stderr.decode()
    shown = cli("show", session_id).stdout.decode()
    assert "status       paused" in shown
    assert "none answers" not in shown
    assert "Which one? (a | b)\n  answer: salience say" in shown
    assert answer(cli("show", session_id, "--json"))["open_questions"][0]["question"] == "Which one?"
    assert "open questions:\n  Which one? (a | b)" in cli("state", session_id).stdout.decode()
    assert session_id in [row["session_id"] for row in answer(cli("list", "--status", "paused", "--json"))]

    went_on = answer(cli("say", session_id, "a", "--follow", "--json"))
    assert (went_on["reason"], went_on["final_text"], went_on["questions"]) == ("answered", "So it is a.", [])
    assert answer(cli("show", session_id, "--json"))["open_questions"] == []
    asked_again = answer(cli("say", session_id, "and now?", "--follow", "--json"))
    assert (asked_again["reason"], asked_again["questions"][0]["choices"]) == ("asked", ["a", "b"])


@pytest.mark.timeout(240)
def test_events_from_history_are_those_of_the_journal(cli: Run, script: Any, session_id: str) -> None:
    model = script([WRITE, {"text": "one"}, {"text": "two"}])
    assert cli("run", "go", "--model", model, "--session", session_id).returncode == 0
    assert cli("say", session_id, "on", "--follow").returncode == 0

    def printed(*options: str) -> list[dict[str, Any]]:
        done = cli("events", session_id, "--json", *options)
        assert done.returncode == 0, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    journal, raw = printed(), printed("--from-history")
    assert {event.pop("source") for event in raw} == {"temporal"}
    assert raw == journal
    some = ("--type", "UserPromptSubmitted", "--after", "3")
    assert [event["seq"] for event in printed(*some, "--from-history")] == [event["seq"] for event in printed(*some)]
    plain, from_history = cli("events", session_id), cli("events", session_id, "--from-history")
    assert plain.stdout == from_history.stdout
    assert from_history.stderr.count(b"from Temporal") == 2

    # The workflow is gone: the archive tells the same.
    runs = answer(cli("show", session_id, "--json"))["runs"]
    forget(session_id, runs)
    archived = printed("--from-history")
    assert {event.pop("source") for event in archived} == {"archive"}
    assert archived == journal
    assert "neither Temporal nor an archive" in one_error(cli("events", "none", "--from-history"), 3)


def forget(session_id: str, runs: list[str]) -> None:
    """Have Temporal delete the runs of a session, as its retention would."""

    async def work(client: Salience) -> None:
        async def archived() -> bool:
            return all(run.archive_ref for run in await client.journal.runs(session_id))

        await until(archived)
        service = client.temporal.workflow_service
        for run_id in runs:
            execution = WorkflowExecution(workflow_id=session_id, run_id=run_id)
            request = DeleteWorkflowExecutionRequest(namespace=client.temporal.namespace, workflow_execution=execution)
            await service.delete_workflow_execution(request)
        histories = Histories(client.temporal)

        async def gone() -> bool:
            for run_id in runs:
                with contextlib.suppress(NotFound):
                    await histories.whole(session_id, run_id)
                    return False
            return True

        await until(gone, timeout_s=150)  # the server deletes half a minute after it was asked

    connected(work)


@pytest.mark.parametrize(
    ("at", "code", "words"),
    [
        ("\udcff\udcfe", 2, "names no event"),
        ("", 2, "names no event"),
        ("²", 2, "is no seq"),
        ("9" * 30, 2, "is no seq"),
        ("9" * 18, 3, "has no event"),
        ("no:such:event", 3, "has no event"),
    ],
)
@pytest.mark.parametrize("command", ["state", "context"])
def test_an_event_that_is_none(
    cli: Run, script: Any, session_id: str, command: str, at: str, code: int, words: str
) -> None:
    assert cli("run", "go", "--model", script([{"text": "one"}]), "--session", session_id).returncode == 0
    assert words in one_error(cli(command, session_id, "--at", at), code)


def test_a_tool_that_is_none_is_refused_by_the_command(cli: Run, script: Any, session_id: str) -> None:
    model = script([{"text": "one"}])
    for command in ("run", "start"):
        done = cli(command, "go", "--model", model, "--session", session_id, "--tools", "finish,nope")
        line = one_error(done, 2)
        assert "no such tool: nope" in line
        assert "the tools are ask_user, edit_file" in line
    assert "no session" in one_error(cli("show", session_id), 3)


def test_large_and_bad_input(cli: Run, script: Any, session_id: str) -> None:
    model = script([{"text": "ok"}], on_end="repeat_last")
    bad = b"nul \0 and \xff\xfe " + "\U0001f642".encode()
    done = cli("run", "-", "--model", model, "--session", session_id, "--json", stdin=bad)
    assert answer(done)["reason"] == "answered"
    assert "3 characters were no valid text" in done.stderr.decode()
    (prompt, *_) = answer(cli("show", session_id, "--json"))["transcript"]
    assert prompt["text"] == "nul \ufffd and \ufffd\ufffd \U0001f642"
    assert any(a["artifact_id"].startswith("original:") for a in answer(cli("artifact", "list", session_id, "--json")))

    taken = answer(cli("say", session_id, "-", "--json", stdin=b"word " * 1_000_000))
    assert taken["accepted"] == "queued"
    assert "limit is 50 MB" in one_error(cli("say", session_id, "-", stdin=b"x" * 60_000_000), 2)


def wait_for(there: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)
