"""`make demo-real`: a session mends a rounding bug of the published marshmallow 3.13.0 while its worker is killed.

python -m demo.real [--folder FOLDER] [--turns FILE] [--source ARCHIVE]
"""

from __future__ import annotations

import argparse
import sys
import tarfile
from functools import partial
from pathlib import Path

from demo.stage import ROOT, NotTrue, Stage, play

HERE = Path(__file__).resolve().parent
SOURCE = ROOT / ".cache" / "marshmallow-3.13.0.tar.gz"
SESSION = "marshmallow"
TASK = (
    "fields.TimeDelta serializes some durations wrongly: with precision milliseconds, 345 ms becomes 344. "
    "Reproduce it, mend it, and run the project's tests of fields and serialization before and after."
)
TESTS = "python -B -m pytest -q -p no:cacheprovider -p no:asyncio tests/test_fields.py tests/test_serialization.py"
PROBE = """
import datetime as dt
from marshmallow import fields, __version__
wrong = 0
for unit, per_second in (("milliseconds", 1_000), ("microseconds", 1_000_000), ("seconds", 1)):
    field = fields.TimeDelta(unit)
    for count in range(-2_000, 2_001):
        wrong += field._serialize(dt.timedelta(**{unit: count}), "", None) != count
print(__version__, "serializes", wrong, "of 12003 durations wrongly")
"""
"""Ours, not the session's: whole milliseconds, microseconds and seconds, which must come out as they went in."""


def job(stage: Stage, source: Path, turns: Path) -> None:
    """The job on real input, step by step.

    Raises:
        NotTrue: the archive is missing, or a step did not do what its heading says.
    """
    stage.heading("the published source of marshmallow 3.13.0", "As pip got it from the package index, hash checked.")
    if not source.exists():
        raise NotTrue(f"{source} is missing: with a package index in reach, `make demo-real` gets it")
    with tarfile.open(source) as archive:
        # Python 3.11 before its fourth release has no filters; pip has checked the archive's hash.
        archive.extractall(stage.folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (stage.folder / "marshmallow-3.13.0").rename(stage.work)
    wrong = wrong_durations(stage)
    stage.expect(wrong > 0, f"the bug is there: {wrong} durations come out wrong")
    stage.expect(passes(stage), "its own 275 tests of fields and serialization pass: they do not see the bug")

    stage.heading("a session mends it", "A scripted model, the real repository; its worker is killed in the middle.")
    stage.salience("up")
    stage.run_killing_the_worker(
        "run", TASK, "--session", SESSION, "--cwd", str(stage.work), "--model", f"script:{turns}",
        "--window", "16000", "--constraint", "Do not change the tests.",
        at_model_call=3,
    )  # fmt: skip

    stage.heading("the work", "Not the session's word: our own probe, and the project's own tests.")
    stage.expect(wrong_durations(stage) == 0, "every duration comes out as it went in")
    stage.expect(passes(stage), "its own 275 tests of fields and serialization pass as before")
    written = [event["payload"]["path"] for event in stage.events(SESSION) if event["type"] == "FileWritten"]
    stage.expect(written == ["src/marshmallow/fields.py"], "one file was edited, once")

    stage.heading("the context", "What the model saw at its last call, by section, and what was left out and why.")
    stage.salience("context", SESSION)

    stage.heading("verify", "Chain, history, every context compiled again, invariants, contents: all checked.")
    stage.salience("verify", SESSION)
    stage.salience("down")
    stage.heading("done", "Nothing runs any more.")


def wrong_durations(stage: Stage) -> int:
    """How many durations the source in the work folder serializes wrongly.

    Raises:
        NotTrue: it cannot be imported.
    """
    done = stage.command("python", "-B", "-c", PROBE)
    if done.returncode:
        raise NotTrue(f"the source cannot be used: {done.stderr.strip()[-500:]}")
    stage.say(f"$ probe\n{done.stdout.strip()}")
    return int(done.stdout.split()[2])


def passes(stage: Stage) -> bool:
    """Whether the project's own tests pass, all 275 of them."""
    done = stage.command(*TESTS.split(), show=1)
    return done.returncode == 0 and "275 passed" in done.stdout


def main() -> int:
    """Run the demo; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.real", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "demo-real", help="wiped at the start")
    parser.add_argument("--turns", type=Path, default=HERE / "turns.yaml", help="what the scripted model says")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the source archive of marshmallow 3.13.0")
    asked = parser.parse_args()
    return play(Stage(asked.folder), partial(job, source=asked.source.absolute(), turns=asked.turns.absolute()))


if __name__ == "__main__":
    sys.exit(main())
