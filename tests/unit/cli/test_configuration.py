"""Options lie over a file, and both over defaults."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from salience.cli.configuration import Asked, configuration, read
from salience.cli.options import model_name, words_of
from salience.errors import NotFound, UsageError


def test_defaults(tmp_path: Path) -> None:
    config = configuration(Asked(cwd=tmp_path), default_model="a/b")
    assert (config.cwd, config.model_settings.model) == (str(tmp_path), "a/b")
    assert config.context_config.context_window_tokens == 128_000


def test_every_option_reaches_its_field(tmp_path: Path) -> None:
    asked = Asked(
        cwd=tmp_path,
        model="a/b",
        window=9_000,
        reserve=1_000,
        sandbox="read_only",
        network=True,
        tools="search, read_file",
        constraints=("no tabs",),
        criteria=("tests pass",),
        max_model_calls=7,
        max_output_tokens=500,
        api_base="http://localhost:1/v1",
    )
    config = configuration(asked, default_model="c/d")
    assert config.model_settings.model == "a/b"
    assert config.model_settings.max_output_tokens == 500
    assert config.model_settings.api_base == "http://localhost:1/v1"
    assert config.context_config.usable_tokens == 8_000
    assert (config.permission_config.sandbox_mode, config.permission_config.network) == ("read_only", True)
    assert config.tools == ("search", "read_file")
    assert (config.hard_constraints, config.acceptance_criteria) == (("no tabs",), ("tests pass",))
    assert config.limits.max_model_calls == 7


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("c.json", json.dumps({"model_config": {"model": "f/m"}, "limits": {"max_model_calls": 3}})),
        ("c.yaml", "model_settings: {model: f/m}\nlimits: {max_model_calls: 3}\n"),
        ("c.toml", '[model_config]\nmodel = "f/m"\n[limits]\nmax_model_calls = 3\n'),
    ],
)
def test_a_file_in_each_format_with_an_option_over_it(tmp_path: Path, name: str, body: str) -> None:
    file = tmp_path / name
    file.write_text(body)
    config = configuration(Asked(cwd=tmp_path, file=file, max_output_tokens=9), default_model="a/b")
    assert (config.model_settings.model, config.model_settings.max_output_tokens) == ("f/m", 9)
    assert config.limits.max_model_calls == 3


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("c.json", "{", "cannot be parsed"),
        ("c.yaml", "a: [", "cannot be parsed"),
        ("c.toml", "a =", "cannot be parsed"),
        ("c.json", "[1]", "no table"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, name: str, body: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(body)
    with pytest.raises(UsageError, match=said) as caught:
        read(file)
    assert "\n" not in caught.value.line()


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"context_config": {"windw": 1}}')
    with pytest.raises(UsageError, match=r"context_config\.windw is not a known key"):
        configuration(Asked(cwd=tmp_path, file=file), default_model="a/b")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read(tmp_path / "none.json")


def test_a_script_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "turns.yaml").write_text("turns: []")
    monkeypatch.chdir(tmp_path)
    assert model_name("script:./turns.yaml") == f"script:{tmp_path}/turns.yaml"
    assert model_name("a/b") == "a/b"


class Stdin(io.TextIOWrapper):
    """Stdin with bytes in it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


@pytest.mark.parametrize(
    ("data", "warned"), [(b"plain", False), ("größer 🙂".encode(), False), (b"a\0b", True), (b"bad \xff\xfe", True)]
)
def test_stdin_is_taken_as_bytes(
    data: bytes, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    words = words_of("-", None, "task")
    assert words.encode("utf-8", "surrogateescape") == data
    assert ("replaced" in capsys.readouterr().err) is warned


def test_words_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "task").write_text("do it")
    assert words_of(None, tmp_path / "task", "task") == "do it"


@pytest.mark.parametrize("given", [{"words": None, "file": None}, {"words": "x", "file": Path("y")}])
def test_words_are_given_once(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        words_of(**given, what="task")
