"""A stage is a home, a work folder and the command line: every step is said, done as a user would, and checked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
KILL_AFTER_S = 0.7
"""Into the model call; less than any delay that a script gives the call that is to be killed."""
WIDTH = 100


class NotTrue(Exception):
    """A step did not do what its heading says."""


class Stage:
    """Where a demo plays.

    Args:
        folder: holds everything of it; wiped by `clear`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.home = self.folder / "home"
        self.copy = self.folder / "copy"
        self.work = self.folder / "work"
        self._began = time.monotonic()

    def clear(self) -> None:
        """End what an earlier demo left running and delete what it left lying."""
        for home in (self.home, self.copy):
            if home.exists():
                self._call(home, ["down", "--purge", "--yes"])
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def leave(self) -> None:
        """End all that runs; the data stay."""
        for home in (self.home, self.copy):
            if home.exists():
                self._call(home, ["down"])

    def heading(self, title: str, line: str) -> None:
        """Say what comes next and what it shows."""
        passed = f"{time.monotonic() - self._began:.0f} s"
        self.say(f"\n── {title} {'─' * max(3, WIDTH - len(title) - len(passed) - 8)} {passed} ──")
        self.say(f"   {line}\n")

    def say(self, words: str) -> None:
        """A line of the demo itself."""
        print(words, flush=True)

    def expect(self, fact: bool, what: str) -> None:
        """Say that something is true.

        Raises:
            NotTrue: it is not.
        """
        if not fact:
            raise NotTrue(what)
        self.say(f"✓ {what}")

    # --- commands -----------------------------------------------------------------------------------------------------

    def salience(self, *words: str, code: int = 0, copy: bool = False) -> str:
        """Run a command of the command line, show it with its output, and return the output.

        Args:
            words: the command.
            code: the exit code that it must have.
            copy: whether it speaks to the copy of the home.

        Raises:
            NotTrue: it ended with another code.
        """
        self.say(f"$ {'SALIENCE_HOME=copy ' if copy else ''}salience {shown(words)}")
        done = self._call(self.copy if copy else self.home, words)
        self.say(done.stdout.rstrip())
        if done.returncode != code:
            raise NotTrue(f"salience {words[0]} ended with code {done.returncode}, not {code}")
        return done.stdout

    def events(self, session_id: str) -> list[dict[str, Any]]:
        """The events of a session's log, silently.

        Raises:
            NotTrue: they cannot be read.
        """
        done = self._call(self.home, ["events", session_id, "--json"])
        if done.returncode:
            raise NotTrue(f"the events cannot be read: {done.stdout.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def command(self, *words: str, show: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment in the work folder, as whoever doubts the session would.

        Args:
            words: the command.
            show: how many of its last lines to show; 0 runs it silently.
        """
        env = {**plain_environment(), "PATH": f"{PROGRAMS}:{os.environ.get('PATH', '')}", "PYTHONPATH": "src"}
        done = subprocess.run(words, cwd=self.work, env=env, capture_output=True, text=True, check=False)
        if show:
            lines = done.stdout.strip().splitlines()[-show:]
            self.say("\n".join((f"$ {shown(words)}", *lines)))
        return done

    def run_killing_the_worker(self, *words: str, at_model_call: int) -> int:
        """Run a session to its end, and kill its worker with SIGKILL while a model call is awaited.

        Args:
            words: the command, `run …`.
            at_model_call: which call, counted from 1; its scripted answer must take longer than a second.

        Returns:
            The pid that was killed.

        Raises:
            NotTrue: the session failed, or there was no such call.
        """
        self.say(f"$ salience {shown(words)}")
        killed, calls = 0, 0
        with subprocess.Popen(
            [PROGRAMS / "salience", *words],
            cwd=ROOT, env=self._environment(self.home), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                self.say(line.rstrip())
                calls += "ModelRequestStarted" in line
                if calls == at_model_call and not killed:
                    time.sleep(KILL_AFTER_S)
                    killed = self._kill_worker()
        if process.returncode:
            raise NotTrue(f"the session failed with code {process.returncode}")
        if not killed:
            raise NotTrue(f"the session ended without a model call {at_model_call}, so nothing was killed")
        return killed

    def _kill_worker(self) -> int:
        pid = int(self.worker()["pid"])
        os.kill(pid, signal.SIGKILL)
        self.say(f"✂ kill -9 {pid}: the worker is dead in the middle of a model call; nobody else is told")
        return pid

    def worker(self) -> dict[str, Any]:
        """The worker of the running stack: pid, restarts."""
        found: dict[str, Any] = json.loads((self.home / "run" / "stack.json").read_text(encoding="utf-8"))["worker"]
        return found

    # --- the forger's part --------------------------------------------------------------------------------------------

    def copy_home(self) -> None:
        """Copy the home, whose stack must be down."""
        self.say("$ python -m salience.local copy home copy")
        words = [sys.executable, "-m", "salience.local", "copy", str(self.home), str(self.copy)]
        done = subprocess.run(words, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotTrue(f"the home was not copied: {done.stderr.strip()}")

    def _call(self, home: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAMS / "salience", *words],
            cwd=ROOT, env=self._environment(home), text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _environment(self, home: Path) -> dict[str, str]:
        return {**plain_environment(), "SALIENCE_HOME": str(home), "COLUMNS": "140"}


def plain_environment() -> dict[str, str]:
    """The environment without settings that would lead to somebody's real deployment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SALIENCE_")}


def shown(words: Sequence[str]) -> str:
    """Words as one would type them, with paths from the checkout."""
    short = [word.replace(f"{ROOT}/", "") for word in words]
    return " ".join(f'"{word}"' if " " in word else word for word in short)


def play(stage: Stage, job: Any) -> int:
    """Play a job on a cleared stage; returns the exit code. Whatever happens, nothing stays running."""
    try:
        stage.clear()
        job(stage)
    except NotTrue as error:
        print(f"\n✗ the demo failed: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130
    finally:
        stage.leave()
    return 0
