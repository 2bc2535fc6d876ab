"""The table of commands, their help and their exit codes, without any server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from salience.cli import app, main
from salience.cli.commands import COMMANDS

NAMES = (
    *("up", "down", "doctor", "run", "start", "say", "interrupt", "pause", "resume", "close", "list", "show", "events"),
    *("state", "context", "stats", "artifact", "worker", "schema"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where nothing runs."""
    for name in ("SALIENCE_MODEL", "SALIENCE_DEBUG", "SALIENCE_TEMPORAL_ADDRESS", "SALIENCE_POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SALIENCE_HOME", str(tmp_path))
    return tmp_path


def leaves() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found.update({f"{name} {word}": sub for word, sub in inner.items()} if inner else {name: command})
    return found


def test_every_command_of_the_contract_is_there() -> None:
    assert set(NAMES) <= set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", leaves())
def test_every_command_has_json_and_says_what_it_does(name: str) -> None:
    command = leaves()[name]
    options = [word for parameter in command.params for word in parameter.opts]
    assert "--json" in options
    assert command.help.strip()
    undescribed = [p.name for p in command.params if not getattr(p, "help", "")]
    assert not undescribed


@pytest.mark.parametrize("entry", COMMANDS.values(), ids=COMMANDS)
def test_lines_of_the_list_are_short_sentences(entry: Any) -> None:
    assert entry.line.endswith(".")
    assert len(entry.line) <= 66


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys; from salience.cli import main; code = main(['--help']);"
        "heavy = {'temporalio', 'psycopg', 'litellm', 'pydantic_settings', 'salience.client'} & set(sys.modules);"
        "sys.exit(code or repr(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert all(f"  {name} " in done.stdout for name in NAMES)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nonsense"], 2, "No such command 'nonsense' — salience --help"),
        (["run", "--nonsense"], 2, "No such option: --nonsense"),
        (["run"], 2, "no task — give the task"),
        (["run", "x", "--file", "y"], 2, "both given"),
        (["say"], 2, "Missing argument 'SESSION' — salience say --help"),
        (["artifact"], 2, "salience artifact --help"),
        (["start", "hi"], 2, "no model is named — give --model"),
        (["start", "hi", "--model", "bare"], 2, "is not of the form provider/model"),
        (["start", "hi", "--model", "script:/does/not/exist"], 3, "no script /does/not/exist"),
        (["start", "hi", "--model", "a/b", "--cwd", "/does/not/exist"], 3, "/does/not/exist does not exist"),
        (["start", "hi", "--model", "a/b", "--approvals", "always"], 2, "needs approvals"),
        (["start", "hi", "--model", "a/b", "--window", "2000"], 2, "give a smaller --reserve"),
        (["start", "hi", "--model", "a/b", "--window", "many"], 2, "--window"),
        (["start", "hi", "--model", "a/b", "--sandbox", "none"], 2, "sandbox_mode"),
        (["start", "hi", "--model", "a/b", "--session", "a/b"], 2, "is not usable"),
        (["start", "--file", "/does/not/exist", "--model", "a/b"], 3, "cannot be read"),
        (["start", "hi", "--model", "a/b"], 5, "salience up"),
        (["list"], 5, "salience up"),
        (["show", "s"], 5, "salience up"),
        (["worker"], 5, "salience up"),
        (["worker", "--role", "cook"], 2, "no role 'cook'"),
        (["list", "--status", "odd"], 2, "no such status"),
        (["events", "s", "--type", "ToolCallFinish"], 2, "perhaps ToolCallFinished"),
        (["schema", "Sesion"], 3, "perhaps Session"),
        (["artifact", "grep", "(", "s"], 2, "no regular expression"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("salience: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_an_unknown_key_in_the_settings_file_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "salience.toml").write_text('modell = "a/b"\n')
    assert main(["list"]) == 2
    assert "modell is not a known key — correct salience.toml" in capsys.readouterr().err


def test_a_settings_file_that_is_no_toml(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "salience.toml").write_text("model = \n")
    assert main(["list"]) == 2
    captured = capsys.readouterr()
    assert "salience.toml" in captured.err
    assert captured.err.count("\n") == 1


def test_help_of_every_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in leaves():
        assert main([*name.split(), "--help"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_no_words_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Session", "SessionNode", "Event", "Message", "State", "Stats", "Artifact"])
def test_schema_is_a_json_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from jsonschema import Draft202012Validator

    assert main(["schema", name, "--json"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")


def test_schemas_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--json"]) == 0
    listed = {row["name"]: row["description"] for row in json.loads(capsys.readouterr().out)}
    assert {"ContextBundle", "Segment", "SessionConfig", "SessionStart", "ToolOutcome", "Event"} <= listed.keys()
    assert all(listed.values())
