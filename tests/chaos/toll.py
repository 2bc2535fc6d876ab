"""The toll is what a run's faults cost, added up over all tests and processes; some of its figures must be zero."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.seed import FULL, seed

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
COMMAND = "make chaos"

COUNTED = ("sessions", "inputs acknowledged", "effects asked for", "outcomes unknown, and said so")
ZEROS = (
    "inputs lost",
    "inputs delivered twice",
    "effects doubled",
    "effects missing",
    "sessions stuck",
    "unsound records",
)
"""What may never happen (spec LOOP-3, LOOP-4): one of it, and the run has failed."""


@dataclass
class Toll:
    """What was done to the parts, and what came of it.

    Attributes:
        faults: how often which part met what, as "worker killed".
        reached: at which failpoints a worker died or stood still, and how often.
        figures: what was counted of the sessions, by the names of `COUNTED` and `ZEROS`.
        recoveries: seconds from each death, or from the end of each other fault, to the next activity that ended well.
    """

    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)

    def add(self, name: str, number: int = 1) -> None:
        """Count something of the sessions."""
        assert name in (*COUNTED, *ZEROS), name
        self.figures[name] += number

    def merge(self, other: dict[str, Any]) -> None:
        """Add what another test or process has counted."""
        self.faults.update(other["faults"])
        self.reached.update(other["reached"])
        self.figures.update(other["figures"])
        self.recoveries += other["recoveries"]

    @property
    def wrong(self) -> list[str]:
        """The figures that should be zero and are not, in words."""
        return [f"{name}: {self.figures[name]}" for name in ZEROS if self.figures[name]]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "faults": dict(sorted(self.faults.items())),
            "reached": dict(sorted(self.reached.items())),
            "figures": {name: self.figures[name] for name in (*COUNTED, *ZEROS)},
            "recoveries": sorted(round(seconds, 2) for seconds in self.recoveries),
        }

    def lines(self) -> list[str]:
        """As a table in Markdown."""
        p50, p95 = (f"{quantile(self.recoveries, part):.1f} s" if self.recoveries else "-" for part in (0.5, 0.95))
        rows = [
            *((f"{what}, times", str(count)) for what, count in sorted(self.faults.items())),
            *((f"worker lost at `{name}`, times", str(count)) for name, count in sorted(self.reached.items())),
            *((name, str(self.figures[name])) for name in COUNTED),
            *((f"**{name}**", f"**{self.figures[name]}**") for name in ZEROS),
            (f"recovery, median of {len(self.recoveries)}", p50),
            ("recovery, 95th percentile", p95),
        ]
        return ["| what | figure |", "|---|---:|", *(f"| {what} | {figure} |" for what, figure in rows)]


def quantile(values: Iterable[float], part: float) -> float:
    """The smallest value that at least `part` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def keep(toll: Toll, tests: Sequence[str]) -> None:
    """Write what the whole run has cost beside the other measurements."""
    figures = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "command": f"SALIENCE_CHAOS_SEED={seed()} {COMMAND}",
        "seed": seed(),
        **toll.plain(),
        "tests": list(tests),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "chaos.json").write_text(json.dumps(figures, indent=1) + "\n")
    about = f"`{figures['command']}` on {figures['machine']}, {figures['measured_at']}"
    said = ["# Faults", "", about, "", *toll.lines(), ""]
    (RESULTS / "chaos.md").write_text("\n".join(said))


class Report:
    """The part of pytest that adds the tests' tolls up, prints them, and fails the run for a figure that must be zero."""

    def __init__(self) -> None:
        self.toll = Toll()
        self.said: list[str] = []
        self.tests: list[str] = []

    def pytest_report_header(self) -> str:
        """Say the seed at the beginning: a run that hangs has one, too."""
        return f"chaos: {'everything' if FULL else 'a slice'}, SALIENCE_CHAOS_SEED={seed()}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take what a test has recorded; pytest calls this in the process that reports, whoever ran the test."""
        name = report.nodeid.rpartition("::")[2]
        if FULL and report.failed:
            # A run of half an hour must not keep what it found to itself until its end.
            print(f"\n{report.nodeid} failed:\n{report.longreprtext}", file=sys.__stderr__, flush=True)
        for kind, value in report.user_properties:
            if kind == "chaos" and report.when == "call":
                self.said.append(f"{name}: {value}")
            if kind == "toll" and report.when == "teardown":
                self.toll.merge(value)
                self.tests.append(report.nodeid)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Fail a run that lost or doubled something, also when no single test noticed."""
        if self.toll.wrong and not session.exitstatus:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what it cost."""
        if not self.tests:
            return
        terminalreporter.section(f"chaos, SALIENCE_CHAOS_SEED={seed()}")
        for line in (*self.said, "", *self.toll.lines(), *(f"NOT ZERO: {wrong}" for wrong in self.toll.wrong)):
            terminalreporter.write_line(line)
        if "SALIENCE_CHAOS_KEEP" in os.environ:
            keep(self.toll, self.tests)
