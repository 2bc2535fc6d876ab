"""`python -m bench`: Salience, bare Temporal and the peers on the same turns, one after the other; results in a table.

A turn is one scripted model call and one tool call with a result of 1,000 bytes. Run it on an idle machine: a build in the
background doubles every figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import bare, footprint, peers, turns

RESULTS = Path(__file__).parent / "results"
LENGTHS = [20, 80, 150, 200, 500]


def main() -> None:
    """Measure, print the table, write `bench/results/turns.json` and `turns.md`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=LENGTHS, help="lengths of the sessions")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of Salience beside bare Temporal; medians count")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    asked = parser.parse_args()
    figures: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.python_version()}",
        "command": "python -m bench " + " ".join(sys.argv[1:]),
    }
    _tell("memory and start-up")
    weight = footprint.measure()
    figures["footprint"] = {**asdict(weight), "help_ratio": weight.help_ratio}
    ours: dict[int, list[turns.Turns]] = {length: [] for length in asked.turns}
    bared: dict[int, list[bare.BareTurns]] = {length: [] for length in asked.turns}
    for number in range(asked.rounds):
        # Alternating rounds: what the machine does meanwhile meets both sides.
        _tell(f"bare Temporal, round {number + 1}")
        for line in asyncio.run(bare.run(asked.turns)):
            bared[line.turns].append(line)
        _tell(f"Salience, round {number + 1}")
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            for measured in asyncio.run(turns.run(asked.turns, Path(folder))):
                ours[measured.turns].append(measured)
    others: list[peers.PeerTurns] = []
    if asked.no_peers or not peers.available():
        _tell("the peers' scripts are not here: left out" if not asked.no_peers else "peers left out")
    else:
        for peer in peers.PACKAGES:
            _tell(peer)
            others += peers.run(peer, asked.turns)
    figures["salience"] = {
        length: [{**asdict(m), "overhead_ms": m.overhead_ms} for m in rounds] for length, rounds in ours.items()
    }
    figures["bare"] = {length: [asdict(m) for m in rounds] for length, rounds in bared.items()}
    figures["peers"] = [asdict(line) for line in others]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "turns.json").write_text(json.dumps(figures, indent=1) + "\n")
    table = _table(figures, ours, bared, others)
    (RESULTS / "turns.md").write_text(table)
    print(table)


def _table(
    figures: dict[str, Any],
    ours: dict[int, list[turns.Turns]],
    bared: dict[int, list[bare.BareTurns]],
    others: list[peers.PeerTurns],
) -> str:
    weight = figures["footprint"]
    lines = [
        "# Turns, side by side",
        "",
        f"`{figures['command']}` · {figures['measured_at']} · {figures['machine']}",
        "",
        "Milliseconds a turn are everything but model and tool time for Salience, wall time for the others, whose model",
        "and tool answer at once. Medians of all rounds.",
        "",
        "| turns | bare Temporal ms | Salience ms | ratio | bytes a turn | runs | replay s |"
        + "".join(f" {peer} ms (bytes a turn) |" for peer in peers.PACKAGES),
        "|---" * (7 + len(peers.PACKAGES)) + "|",
    ]
    for length, rounds in ours.items():
        overhead = statistics.median(m.overhead_ms for m in rounds)
        floor = statistics.median(m.wall_ms for m in bared[length])
        size = statistics.median(m.history_bytes_per_turn for m in rounds)
        replay = max(m.replay_s for m in rounds)
        row = f"| {length} | {floor:.1f} | {overhead:.1f} | {overhead / floor:.2f} | {size:.0f} |"
        row += f" {rounds[0].runs} | {replay:.2f} |"
        for peer in peers.PACKAGES:
            found = next((line for line in others if line.peer == peer and line.turns == length), None)
            if found is None or found.wall_ms is None:
                row += " died |" if found is not None else " – |"
            else:
                row += f" {found.wall_ms:.1f} ({found.history_bytes_per_turn:.0f}) |"
        lines.append(row)
    lines += [
        "",
        f"Idle stack: Temporal {weight['temporal_mb']:.0f} MB, Postgres {weight['postgres_mb']:.0f} MB,"
        f" worker {weight['worker_mb']:.0f} MB.",
        f"`salience --help`: {weight['help_s']:.2f} s, {weight['help_ratio']:.2f} × the import of typer and pydantic.",
        "",
        *(f"- {line.peer}: {line.failed}" for line in others if line.failed),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _tell(words: str) -> None:
    print(f"· {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
