"""What a command sees and does is the kernel's rule, and nothing of it runs on (POL-2); with real bubblewrap."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from salience.model.session import SandboxMode
from salience.workspace import command, sandbox
from salience.workspace.command import Ended, forget, run, spooled
from salience.workspace.paths import Workspace
from salience.workspace.sandbox import SandboxUnavailable, confine


async def say(
    root: Path,
    text: str,
    mode: SandboxMode = "workspace_write",
    *,
    network: bool = False,
    timeout_s: float = 20,
    stop: asyncio.Event | None = None,
    runtime: tuple[Path, ...] = (),
) -> Ended:
    confinement = confine(Workspace.at(str(root), runtime=runtime), mode, network=network)
    tag = f"test-{os.getpid()}"
    try:
        return await run(
            text, confinement, tag=tag, timeout_s=timeout_s, stop=stop or asyncio.Event(), progress=lambda size: None
        )
    finally:
        forget(tag)


async def test_runs_at_its_own_path_and_gives_the_exit_code(tmp_path: Path) -> None:
    ended = await say(tmp_path, "pwd; echo made > made; echo err >&2; exit 7")
    assert ended == Ended("exited", 7, f"{tmp_path.resolve()}\nerr\n".encode())
    assert (tmp_path / "made").read_text() == "made\n"


async def test_python_of_the_session_runs(tmp_path: Path) -> None:
    ended = await say(tmp_path, "python -c 'import ssl, sys, pytest; print(sys.prefix)'")
    assert ended.output.decode().strip() == sys.prefix


async def test_sees_no_secrets_no_home_and_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("SALIENCE_POSTGRES_DSN", "canary")
    for mode in ("workspace_write", "danger_full_access"):
        assert b"canary" not in (await say(tmp_path, "env", mode)).output
    assert b"canary" not in (await say(tmp_path, "cat /proc/*/environ")).output
    ended = await say(
        tmp_path, "cat /etc/shadow; ls -a /root/.ssh /root/.bashrc; ls /etc/ssl/private; ls /proc/1/root/root"
    )
    assert b"root:" not in ended.output
    assert b".bashrc\n" not in ended.output.replace(b"/root/.bashrc': ", b"")


async def test_writes_nowhere_but_the_workspace_and_tmp(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    targets = f"/etc/x /usr/x /x {tmp_path}/x {sys.prefix}/x"
    script = f"for f in {targets}; do echo 1 > $f && echo WROTE $f; done; echo 1 > /tmp/x && echo ok"
    ended = await say(ws, script)
    assert not (tmp_path / "x").exists()
    assert not Path(sys.prefix, "x").exists()
    assert not Path("/usr/x").exists()
    assert not Path("/tmp/x").exists()
    assert b"WROTE /usr" not in ended.output
    assert f"WROTE {sys.prefix}".encode() not in ended.output
    assert ended.output.endswith(b"ok\n")


async def test_read_only_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    ended = await say(tmp_path, "echo new > f; rm f; mkdir d", "read_only")
    assert ended.exit_code != 0
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


async def test_cannot_remount_or_gain(tmp_path: Path) -> None:
    ended = await say(tmp_path, f"mount -o remount,rw {tmp_path}; mount -t tmpfs none /tmp && echo GAINED", "read_only")
    assert b"GAINED" not in ended.output


async def test_has_no_network_unless_granted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo CONNECTED"
        assert b"CONNECTED" not in (await say(tmp_path, connect)).output
        assert b"CONNECTED" in (await say(tmp_path, connect, network=True)).output


async def test_runtime_folders_inside_the_workspace_are_covered(tmp_path: Path) -> None:
    home = tmp_path / "share" / "salience"
    home.mkdir(parents=True)
    (home / "salience.toml").write_text("key")
    ended = await say(tmp_path, "ls -A share/salience; echo x > share/salience/planted", runtime=(home,))
    assert ended.output == b""
    assert os.listdir(home) == ["salience.toml"]


async def test_the_code_that_runs_the_worker_stays_read_only(tmp_path: Path) -> None:
    ended = await say(Path(sys.prefix).parent, f"echo x > {sys.prefix}/planted && echo WROTE")
    assert b"WROTE" not in ended.output


@pytest.mark.parametrize("mode", ["workspace_write", "danger_full_access"])
async def test_children_do_not_outlive_it(tmp_path: Path, mode: SandboxMode) -> None:
    started = time.monotonic()
    ended = await say(tmp_path, "(sleep 1.5; echo late > late) & echo $!; echo done", mode)
    assert ended.exit_code == 0
    assert time.monotonic() - started < 1.5
    await asyncio.sleep(2)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize("mode", ["workspace_write", "danger_full_access"])
async def test_time_limit_keeps_what_was_said_and_gives_a_grace(tmp_path: Path, mode: SandboxMode) -> None:
    script = "trap 'echo cleaned > cleaned; exit 3' TERM; echo begun; while true; do sleep 0.05; done"
    ended = await say(tmp_path, script, mode, timeout_s=0.5)
    assert (ended.ending, ended.exit_code) == ("timed_out", None)
    assert ended.output.startswith(b"begun\n")
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("mode", ["workspace_write", "danger_full_access"])
async def test_what_ignores_the_request_is_killed(
    tmp_path: Path, mode: SandboxMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "GRACE_S", 0.3)
    started = time.monotonic()
    ended = await say(tmp_path, "trap '' TERM; echo begun; while true; do sleep 0.05; done", mode, timeout_s=0.5)
    assert ended.ending == "timed_out"
    assert time.monotonic() - started < 5


async def test_stop_ends_it(tmp_path: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    ended = await say(tmp_path, "echo begun; sleep 60", stop=stop)
    assert (ended.ending, ended.output[:6]) == ("stopped", b"begun\n")


async def test_endless_output_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_OUTPUT_BYTES", 1_000_000)
    ended = await say(tmp_path, "yes")
    assert (ended.ending, len(ended.output)) == ("output_limit", 1_000_000)


async def test_output_is_kept_byte_for_byte(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "data").write_bytes(data)
    assert (await say(tmp_path, "cat data")).output == data


async def test_a_signal_is_said_as_a_shell_says_it(tmp_path: Path) -> None:
    for mode in ("workspace_write", "danger_full_access"):
        assert (await say(tmp_path, "kill -9 $$", mode)).exit_code == 137


async def test_no_bubblewrap_fails_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: str(broken))
    with pytest.raises(SandboxUnavailable, match="uid map") as refused:
        confine(Workspace.at(str(tmp_path)), "workspace_write", network=False)
    assert "danger_full_access" in refused.value.line()
    assert confine(Workspace.at(str(tmp_path)), "danger_full_access", network=False).argv == ()


async def test_the_root_folder_is_no_workspace() -> None:
    with pytest.raises(SandboxUnavailable):
        confine(Workspace.at("/"), "workspace_write", network=False)


async def test_a_killed_worker_takes_the_command_with_it_and_leaves_what_it_said(tmp_path: Path) -> None:
    worker = f"""
import asyncio
from salience.workspace.command import run
from salience.workspace.paths import Workspace
from salience.workspace.sandbox import confine

async def main():
    confinement = confine(Workspace.at({str(tmp_path)!r}), "workspace_write", network=False)
    text = "echo begun; touch mark; sleep 1; touch late"
    await run(text, confinement, tag="killed", timeout_s=9, stop=asyncio.Event(), progress=lambda n: None)

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", worker], cwd=Path(__file__).parents[3])  # noqa: ASYNC220 - it is to be killed, not awaited
    while not (tmp_path / "mark").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    await asyncio.sleep(1.5)
    assert not (tmp_path / "late").exists()
    assert spooled("killed") == b"begun\n"
    forget("killed")
