"""`salience export` and `salience import` as a user runs them: what they print, and how they end (spec EVT-7, PPL-1)."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from salience.cli import main
from salience.local import Stack

Run = Callable[..., subprocess.CompletedProcess[bytes]]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cli(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `salience …` within this process: starting one takes seconds."""
    for name in [name for name in os.environ if name.startswith("SALIENCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SALIENCE_HOME", str(stack.home.root))

    def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(words)
        printed = capsysbinary.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    return run


@pytest.fixture
def data(cli: Run, workspace: Path, session_id: str, tmp_path: Path) -> bytes:
    """An exported session of one answer."""
    script = tmp_path / "turns.json"
    script.write_text(json.dumps({"turns": [{"text": "an answer"}]}))
    ran = cli("run", "a task", "--session", session_id, "--cwd", str(workspace), "--model", f"script:{script}")
    assert ran.returncode == 0, ran.stderr
    piped = cli("export", session_id)
    assert piped.returncode == 0, piped.stderr
    return piped.stdout


@pytest.fixture
def elsewhere(data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session_id: str) -> bytes:
    """From here on the commands mean a store that does not have the session."""
    monkeypatch.setenv("SALIENCE_TENANT", f"of-{session_id}")
    monkeypatch.setenv("SALIENCE_BLOB_DIR", str(tmp_path / "blobs"))
    return data


def test_an_export_goes_to_stdout_or_to_a_file_that_is_whole(
    cli: Run, data: bytes, session_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    done = cli("export", session_id, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["size_bytes"], told["path"], out.read_bytes()) == (len(data), str(out), data)
    assert cli("export", "nobody", "-o", str(tmp_path / "none.jsonl")).returncode == 3
    assert not (tmp_path / "none.jsonl").exists()
    bare = cli("export", session_id, "--no-blobs")
    assert bare.returncode == 0
    assert b'"kind":"blob"' not in bare.stdout
    assert cli("export", session_id, "--json").returncode == 2
    assert b"is the session that the file was exported from" in cli("import", str(out)).stdout


def test_an_imported_session_is_read_like_any_other(cli: Run, elsewhere: bytes, session_id: str) -> None:
    session_id = f"{session_id}-there"
    first = cli("import", "-", "--json", "--session", session_id, stdin=elsewhere)
    assert (first.returncode, json.loads(first.stdout)["status"]) == (0, "imported"), first.stderr
    again = cli("import", "-", "--format", "salience", "--session", session_id, stdin=elsewhere)
    assert (again.returncode, b"imported already" in again.stdout) == (0, True)
    assert session_id.encode() in cli("list").stdout
    for words in (("show", session_id), ("events", session_id), ("state", session_id), ("stats", session_id)):
        shown = cli(*words)
        assert (shown.returncode, bool(shown.stdout)) == (0, True), shown.stderr
    assert b"a task" in cli("context", session_id, "--text").stdout
    assert json.loads(cli("state", session_id, "--at", "1", "--json").stdout)["goal"]["user_goal"] == ""
    assert b"no artifacts" in cli("artifact", "list", session_id).stderr
    raw = [json.loads(line) for line in cli("events", session_id, "--from-history", "--json").stdout.splitlines()]
    told = [json.loads(line) for line in cli("events", session_id, "--json").stdout.splitlines()]
    assert raw == [{**event, "source": "import"} for event in told]
    checked = cli("verify", session_id)
    assert (checked.returncode, b"the imported file" in checked.stdout) == (0, True), checked.stderr
    assert cli("verify", session_id, "--rebuild").returncode == 0
    assert cli("export", session_id).stdout == elsewhere


def test_a_damaged_file_ends_with_4_and_is_imported(cli: Run, elsewhere: bytes, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(elsewhere.replace(b'"text":"a task"', b'"text":"a tusk"'))
    forged = cli("import", str(damaged), "--session", "forged")
    assert (forged.returncode, b"own hash" in forged.stderr) == (4, True)
    assert b"is not as it was written" in forged.stderr
    assert cli("events", "forged").returncode == 0
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(elsewhere)
    held = cli("import", str(whole))  # this store does not have the session, and the Temporal it shares has
    assert (held.returncode, b"Temporal holds runs" in held.stderr) == (2, True)
    other = cli("import", str(whole), "--session", "forged")
    assert (other.returncode, b"--session NEW" in other.stderr) == (2, True)


def test_what_cannot_be_imported_is_refused_by_name(cli: Run, data: bytes, tmp_path: Path) -> None:
    files = {
        b"newer Salience": data.replace(b'"salience_export":1', b'"salience_export":2'),
        b"unpack it first": gzip.compress(data),
        b"no export of Salience": b"",
    }
    path = tmp_path / "file"
    for word, content in files.items():
        path.write_bytes(content)
        refused = cli("import", str(path), "--session", "x")
        assert (refused.returncode, word in refused.stderr) == (2, True), refused.stderr
    path.write_bytes(data)
    strange = cli("import", str(path), "--format", "codex")
    assert (strange.returncode, b"no format 'codex'" in strange.stderr) == (2, True)
    assert cli("import", str(tmp_path / "nowhere")).returncode == 3
    assert cli("import", str(path), "--session", "a/b").returncode == 2
    assert cli("import", str(path), "--session", "x", "--cwd", str(tmp_path / "nowhere")).returncode == 3


def test_the_format_is_published(cli: Run, data: bytes) -> None:
    """Every line of a real export is what `salience schema export` says, by a validator of its own."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(cli("schema", "export", "--json").stdout)
    validator = jsonschema.Draft202012Validator(schema)
    for line in data.splitlines():
        validator.validate(json.loads(line))
