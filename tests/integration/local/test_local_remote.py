"""`salience up` starts what is not named elsewhere, and says which is which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from salience.errors import StackNotRunning
from salience.local import Stack, resolve, running
from salience.settings import Settings

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-c", "import sys; from salience.cli import main; sys.exit(main())"]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def elsewhere(stack: Stack) -> dict[str, str]:
    """Variables that name the servers of another stack."""
    assert stack.info.temporal
    assert stack.info.postgres
    return {
        "SALIENCE_TEMPORAL_ADDRESS": stack.info.temporal.address,
        "SALIENCE_POSTGRES_DSN": stack.info.postgres.runtime_dsn,
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path) -> Iterator[Run]:
    """Runs `salience …` with a home of its own; its stack ends with the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SALIENCE_")}
    queue = f"remote-{uuid.uuid4().hex[:8]}"

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**kept, "SALIENCE_HOME": str(home), "SALIENCE_TASK_QUEUE": queue, **variables}
        return subprocess.run([*COMMAND, *words], env=env, capture_output=True, text=True, timeout=120)

    yield run
    run("down")


def test_with_both_elsewhere_there_is_only_a_worker_to_start(
    stack: Stack, cli: Run, home: Path, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    up = cli("up", **elsewhere)
    assert up.returncode == 0, up.stderr
    assert f"Temporal  remote    {elsewhere['SALIENCE_TEMPORAL_ADDRESS']}" in up.stdout
    assert "Postgres  remote    postgresql://salience_runtime@" in up.stdout
    assert stack.home.passwords().runtime not in up.stdout + up.stderr
    info = running(home)
    assert info
    assert (info.temporal, info.postgres, info.remote) == (None, None, ("temporal", "postgres"))
    assert info.worker
    assert not (home / "postgres").exists()

    doctor = cli("doctor", "--json", **elsewhere)
    assert doctor.returncode == 0, doctor.stdout
    assert stack.home.passwords().runtime not in doctor.stdout
    script = tmp_path / "turns.json"
    script.write_text(json.dumps({"turns": [{"text": "Hello."}]}))
    ran = cli("run", "hi", "--cwd", str(tmp_path), "--model", f"script:{script}", **elsewhere)
    assert ran.returncode == 0, ran.stderr
    assert "Hello." in ran.stdout

    with pytest.raises(StackNotRunning, match="no Temporal of its own"):
        resolve(Settings(home=home, postgres_dsn=elsewhere["SALIENCE_POSTGRES_DSN"]))


def test_with_one_elsewhere_the_other_is_embedded(cli: Run, home: Path, elsewhere: dict[str, str]) -> None:
    up = cli("up", "--json", SALIENCE_POSTGRES_DSN=elsewhere["SALIENCE_POSTGRES_DSN"])
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout)
    assert told["remote"] == ["postgres"]
    assert told["temporal"]["address"]
    assert told["postgres"] is None
    assert not (home / "postgres").exists()
    doctor = cli("doctor", SALIENCE_POSTGRES_DSN=elsewhere["SALIENCE_POSTGRES_DSN"])
    assert doctor.returncode == 0, doctor.stdout


def test_without_a_worker_there_would_be_nothing_to_start(cli: Run, elsewhere: dict[str, str]) -> None:
    up = cli("up", "--no-worker", **elsewhere)
    assert up.returncode == 2
    assert "nothing to start" in up.stderr


def test_the_doctor_asks_each_remote_part_and_says_what_mends_it(cli: Run) -> None:
    nowhere = {"SALIENCE_TEMPORAL_ADDRESS": "127.0.0.1:1", "SALIENCE_POSTGRES_DSN": "postgresql://u:p4ss@127.0.0.1:1/d"}
    doctor = cli("doctor", "--json", **nowhere)
    assert doctor.returncode == 5
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert "nothing listens there" in checks["temporal"]["detail"]
    assert "temporal_address" in checks["temporal"]["mend"]
    assert "SALIENCE_POSTGRES_DSN" in checks["postgres"]["mend"]
    assert "supervisor" not in checks
    assert "p4ss" not in doctor.stdout
