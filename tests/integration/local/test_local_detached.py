"""`up`, `down` and `doctor` as a user has them: detached, killed, doubled, copied, on bad disks and as another user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
import typer
from typer.testing import CliRunner

from salience.cli import stack as commands
from salience.errors import SalienceError, StackNotRunning, UsageError
from salience.local import StackInfo, copy_home, down, owner_dsn, purge, running, up
from salience.local.doctor import Check, examine, exit_code
from salience.local.home import Home
from salience.local.lock import HomeLock
from salience.settings import Settings

pytestmark = pytest.mark.timeout(90)
CHECKOUT = Path(__file__).parents[3]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that Postgres' account can reach: pytest's own folders are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="salience-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "home"
    for each in folder.iterdir():
        if each.is_dir():
            down(each)
            purge(each)
    shutil.rmtree(folder)


def _left(home: Path) -> list[str]:
    """Every process, socket and lock that belongs to a home."""
    processes = [
        line
        for process in psutil.process_iter(["cmdline"])
        if f"{home}/" in (line := " ".join(process.info["cmdline"] or []) + "/")
    ]
    files = [str(path) for path in home.rglob("*") if path.is_socket() or "lock" in path.name or path.suffix == ".pid"]
    return processes + files + [str(path) for path in Path("/tmp").glob(f"salience-*-{Home(home).key}")]


def _write(home: Path, text: str) -> None:
    with psycopg.connect(owner_dsn(home)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        connection.execute("INSERT INTO notes VALUES (%s)", (text,))


def _read(home: Path) -> list[str]:
    with psycopg.connect(owner_dsn(home)) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY text")]


def _checks(home: Path) -> tuple[int, dict[str, Check]]:
    found = examine(Settings(home=home))
    return exit_code(found), {check.name: check for check in found}


def test_a_stack_lives_through_doubled_ups_and_its_supervisors_death(home: Path) -> None:
    code, checks = _checks(home)
    assert code == 5
    assert checks["supervisor"].mend == "salience up"
    assert checks["sandbox"].ok

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: up(home, worker=False), range(2))
    assert first == second
    code, checks = _checks(home)
    assert code == 0, checks
    assert checks["postgres"].detail.startswith("role salience_runtime, schema ")

    _write(home, "kept")
    assert first.temporal
    os.kill(first.supervisor_pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(process.alive() for process in first.processes()):
        assert time.monotonic() < deadline, "parts outlived their supervisor"
        time.sleep(0.02)
    assert running(home) is None
    with pytest.raises(StackNotRunning):
        owner_dsn(home)

    again = up(home, worker=False)
    assert again.temporal
    assert again.temporal.address == first.temporal.address
    assert _read(home) == ["kept"]

    assert down(home)
    assert _left(home) == []
    assert down(home) is False


def test_down_sweeps_up_after_a_killed_supervisor(home: Path) -> None:
    info = up(home, worker=False)
    os.kill(info.supervisor_pid, signal.SIGKILL)
    assert down(home)
    assert _left(home) == []


def test_down_ends_a_stack_that_is_still_starting(home: Path) -> None:
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(up, home, worker=False)
        while not Home(home).lock_file.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        down(home)
        with pytest.raises(SalienceError):
            starting.result()
    assert _left(home) == []


def test_a_copied_home_runs_beside_its_original_on_its_own_data_and_under_a_long_path(home: Path) -> None:
    up(home, worker=False)
    _write(home, "both")
    with pytest.raises(UsageError, match="is running"):
        copy_home(home, home.parent / "refused")
    down(home)
    copy = home.parent / ("a" * 120)
    subprocess.run(["cp", "-a", home, copy], check=True)
    one, two = up(home, worker=False), up(copy, worker=False)
    assert one.temporal
    assert two.temporal
    assert one.temporal.address != two.temporal.address
    _write(copy, "copy only")
    assert _read(home) == ["both"]
    assert _read(copy) == ["both", "copy only"]

    assert two.pg_data_dir.startswith(str(copy))
    assert two.socket_dir.startswith("/tmp/salience-")
    code, checks = _checks(copy)
    assert code == 0
    assert checks["socket path"].detail.startswith(two.socket_dir)
    down(copy)
    assert _left(copy) == []


@AS_ROOT
def test_a_home_that_postgres_cannot_reach_has_its_data_outside(home: Path) -> None:
    closed = home.parent / "closed"
    closed.mkdir(mode=0o700)
    inner = closed / "home"
    try:
        info = up(inner, worker=False)
        outside = Path(info.pg_data_dir).parents[1]
        assert not Path(info.pg_data_dir).is_relative_to(home.parent)
        assert closed.stat().st_mode & 0o777 == 0o700
        assert info.pg_data_dir in _checks(inner)[1]["postgres data"].detail
        _write(inner, "original")
        down(inner)

        blind = closed / "blind"
        subprocess.run(["cp", "-a", inner, blind], check=True)
        with pytest.raises(SalienceError, match="is a copy of"):
            up(blind, worker=False)

        copy_home(inner, home)
        assert up(home, worker=False).pg_data_dir == str(home / "postgres" / "data")
        _write(home, "copy only")
        down(home)

        moved = closed / "moved"
        inner.rename(moved)
        info = up(moved, worker=False)
        assert _read(moved) == ["original"]
        down(moved)
        assert not outside.exists()
        purge(moved)
        assert not Path(info.pg_data_dir).exists()
        assert not moved.exists()
    finally:
        for each in (inner, closed / "moved"):
            down(each)
            purge(each)
        shutil.rmtree(closed)


@AS_ROOT
def test_a_full_disk_and_a_file_in_the_way_are_one_clear_line(home: Path) -> None:
    small = home.parent / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", small], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(SalienceError, match=r"only \d+ MB are free under"):
            up(small, worker=False)
        assert _checks(small)[0] == 1
    finally:
        subprocess.run(["umount", small], check=True)
    file = home.parent / "file"
    file.touch()
    with pytest.raises(SalienceError, match="Not a directory"):
        up(file / "home", worker=False)
    assert not _checks(file / "home")[1]["home"].ok


def test_what_goes_wrong_in_the_supervisor_is_told_by_up(home: Path) -> None:
    Home(home).make()
    Home(home).passwords_file.write_text("{")
    with pytest.raises(SalienceError, match=r"secrets\.json is damaged") as raised:
        up(home, worker=False)
    assert raised.value.mend == "restore it from a backup"
    assert _left(home) == []


def test_the_lock_is_only_had_on_the_file_at_the_path(tmp_path: Path) -> None:
    one, two = HomeLock(tmp_path / "lock"), HomeLock(tmp_path / "lock")
    assert one.acquire()
    assert not two.acquire()
    one.release()
    assert two.acquire()
    assert not one.acquire()
    two.release()
    assert list(tmp_path.iterdir()) == []


def test_purge_spares_settings_and_what_was_there_before(home: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").touch()
    (home / "salience.toml").touch()
    Home(home).make()
    (home / "blobs").mkdir()
    purge(home)
    assert sorted(path.name for path in home.iterdir()) == ["salience.toml", "thesis.tex"]


def test_the_commands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALIENCE_HOME", str(home))
    app = typer.Typer()
    for command in (commands.up, commands.down, commands.doctor):
        app.command()(command)
    cli = CliRunner()
    done = cli.invoke(app, ["up", "--no-worker", "--json"])
    info = StackInfo.model_validate_json(done.stdout)
    assert info.state == "ready"
    assert "Postgres" in done.stderr
    assert "already running" in cli.invoke(app, ["up"]).stdout
    assert cli.invoke(app, ["doctor"]).exit_code == 0
    assert cli.invoke(app, ["down", "--purge"], input="n\n").exit_code == 1
    assert running(home)
    assert json.loads(cli.invoke(app, ["down", "--json"]).stdout)["ended"] is True
    done = cli.invoke(app, ["doctor", "--json"])
    assert done.exit_code == 5
    assert json.loads(done.stdout)["ok"] is False
    assert cli.invoke(app, ["down", "--purge", "--yes"]).exit_code == 0
    assert not home.exists()


def test_up_in_the_foreground_ends_with_ctrl_c(home: Path) -> None:
    program = "import typer; from salience.cli.stack import up; typer.run(up)"
    argv = [sys.executable, "-c", program, "--foreground", "--no-worker", "--json"]
    env = {**os.environ, "SALIENCE_HOME": str(home)}
    with subprocess.Popen(argv, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert StackInfo.model_validate_json(process.stdout.readline()).mode == "foreground"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert _left(home) == []


@AS_ROOT
def test_a_plain_user_runs_it_as_themselves(home: Path) -> None:
    packages = Path(psycopg.__file__).parents[1]
    python = next((each for each in ("/usr/bin/python3.11", sys.executable) if _usable(each, packages)), None)
    if python is None:
        pytest.skip("no Python 3.11 that an unprivileged user may run")
    home.mkdir()
    os.chown(home, 65534, 65534)
    program = (
        "from pathlib import Path; import sys; from salience.local import up, down;"
        "home = Path(sys.argv[1]); print(up(home, worker=False).model_dump_json()); down(home)"
    )
    env = {
        "PATH": f"{CHECKOUT}/.venv/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{CHECKOUT}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [python, "-c", program, str(home)]
    done = subprocess.run(
        argv, cwd="/", env=env, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    info = StackInfo.model_validate_json(done.stdout)
    assert Path(info.pg_data_dir).stat().st_uid == 65534
    assert Path(info.pg_data_dir).is_relative_to(home)
    assert _left(home) == []


def _usable(python: str, packages: Path) -> bool:
    if not Path(python).exists():
        return False
    done = subprocess.run(
        [python, "-c", "import sys, psycopg; sys.exit(sys.version_info[:2] != (3, 11))"],
        env={"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0
