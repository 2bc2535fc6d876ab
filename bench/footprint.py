"""What Salience weighs before it does anything: memory of the idle stack, and the time until `--help` is printed."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from salience.local import Stack

RUNS = 7


@dataclass(frozen=True)
class Footprint:
    """Resident memory in MB of each part of the idle stack; seconds are medians."""

    temporal_mb: float
    postgres_mb: float
    worker_mb: float
    help_s: float
    imports_s: float

    @property
    def help_ratio(self) -> float:
        """`salience --help` against the import of typer and pydantic alone."""
        return self.help_s / self.imports_s


def measure() -> Footprint:
    """Measure both; the stack is given five seconds to become idle."""
    with Stack(worker=True) as stack:
        time.sleep(5)
        info = stack.info
        pids = (info.temporal.pid, info.postgres.pid, info.worker.pid if info.worker else 0)
        temporal, postgres, worker = (_megabytes(pid) for pid in pids)
    salience = str(Path(sys.executable).with_name("salience"))
    return Footprint(
        temporal,
        postgres,
        worker,
        _median([salience, "--help"]),
        _median([sys.executable, "-c", "import typer, pydantic"]),
    )


def _megabytes(pid: int) -> float:
    """Proportional memory of a process and its children: shared pages count once."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(member.memory_full_info().pss for member in family) / 1e6


def _median(command: list[str]) -> float:
    times: list[float] = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
