"""What is wrong in the settings is said when they are read: one line, what and how to mend it, and never the value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from salience.cli.complaint import complaint_of
from salience.errors import UsageError
from salience.settings import Settings, without_password

SECRET = "s3cret"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with no other setting in the environment."""
    for name in [name for name in os.environ if name.startswith("SALIENCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SALIENCE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temporal_address": "http://temporal:7233"}, "temporal_address: must be host:port"),
        ({"temporal_address": "temporal"}, "temporal_address: must be host:port"),
        ({"temporal_address": "temporal:70000"}, "temporal_address: must be host:port"),
        ({"temporal_address": "::1:7233"}, "temporal_address: must be host:port"),
        ({"temporal_namespace": ""}, "temporal_namespace"),
        ({"temporal_tls_ca": "ca.pem"}, "temporal_tls_ca: must be the absolute path"),
        ({"temporal_tls_cert": "/c.pem"}, "belong together"),
        ({"temporal_tls_key": "/c.key"}, "belong together"),
        ({"temporal_api_key": f"{SECRET}\nX-Other: 1"}, "temporal_api_key: must be printable ASCII"),
        ({"postgres_dsn": f"host=h password={SECRET}"}, "postgres_dsn: must be a URI"),
        ({"postgres_dsn": f"postgresql://u:{SECRET}/x@h/db"}, "postgres_dsn: must be a URI"),
        ({"postgres_dsn": f"postgresql://u:{SECRET}@x@h/db"}, "postgres_dsn: must be a URI"),
        ({"postgres_dsn": f"postgresql://u:{SECRET}%zz@h/db"}, "postgres_dsn: must be a URI"),
        ({"postgres_owner_dsn": f"mysql://u:{SECRET}@h/db"}, "postgres_owner_dsn: must be a URI"),
        ({"postgres_owner_dsn": f"postgresql://u:{SECRET}@h/db"}, "set postgres_dsn too"),
        ({"log_level": "LOUD"}, "log_level"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_without_its_value(home: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**values)
    complaint = complaint_of(raised.value)
    assert complaint.code == 2
    assert said in complaint.line
    assert SECRET not in complaint.line + str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"temporal_address": "temporal.example.com:7233"},
        {"temporal_address": "[::1]:7233"},
        {"postgres_dsn": "postgresql://u:p%40ss@h1:5432,h2/db?sslmode=verify-full"},
        {"postgres_dsn": "postgresql:///db?host=/run/postgresql"},
        {"log_level": "debug"},
        {"temporal_tls_ca": "~/ca.pem"},
    ],
)
def test_what_works_is_taken(home: Path, values: dict[str, Any]) -> None:
    settings = Settings(**values)
    assert settings.log_level == settings.log_level.upper()
    assert not settings.temporal_tls_ca or Path(settings.temporal_tls_ca).is_absolute()


@pytest.mark.parametrize(
    ("values", "secured"),
    [
        ({}, False),
        ({"temporal_tls": True}, True),
        ({"temporal_tls_ca": "/ca.pem"}, True),
        ({"temporal_tls_server_name": "t"}, True),
        ({"temporal_tls_cert": "/c", "temporal_tls_key": "/k"}, True),
        ({"temporal_api_key": SECRET}, True),
    ],
)
def test_every_tls_setting_and_a_key_mean_tls(home: Path, values: dict[str, Any], secured: bool) -> None:
    assert Settings(**values).temporal_secured is secured


def test_secrets_are_in_no_text_of_the_settings(home: Path) -> None:
    dsn = f"postgresql://u:{SECRET}@h/db?password={SECRET}"
    settings = Settings(postgres_dsn=dsn, postgres_owner_dsn=dsn, temporal_api_key=SECRET)  # type: ignore[arg-type]
    assert SECRET not in repr(settings) + str(settings.shown())
    assert settings.shown()["postgres_dsn"] == without_password(dsn) == "postgresql://u@h/db"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"model = \xff", "is not UTF-8"),
        (b"model = ", "is no TOML"),
        (b"home = '/elsewhere'", "names another home"),
    ],
)
def test_a_bad_file_is_one_line_in_every_program(home: Path, content: bytes, said: str) -> None:
    (home / "salience.toml").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        Settings()
    for argv in (["salience.worker"], ["salience.cli", "doctor"]):
        program = [sys.executable, "-c", f"import sys; from {argv[0]} import main; sys.exit(main({argv[1:]!r}))"]
        if argv[0] == "salience.worker":
            program = [sys.executable, "-m", "salience.worker"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_file_may_name_the_home_it_lies_in(home: Path) -> None:
    (home / "salience.toml").write_text(f"home = '{home}'\nlog_level = 'warning'\n")
    assert Settings().log_level == "WARNING"


def test_a_folder_of_that_name_is_no_file_of_settings(home: Path) -> None:
    (home / "salience.toml").mkdir()
    assert Settings().home == home


def test_a_worker_says_in_one_line_what_is_wrong(home: Path) -> None:
    variables = {**os.environ, "SALIENCE_POSTGRES_DSN": f"host=h password={SECRET}"}
    argv = [sys.executable, "-m", "salience.worker"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "postgres_dsn" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stderr


def test_an_unknown_role_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "salience.worker", "--role", "cook"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "cook" in done.stderr
