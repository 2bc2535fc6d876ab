"""`make demo`: a session mends a failing test while its worker is killed, and a forged record is found out.

python -m demo [--folder FOLDER] [--turns FILE]
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from functools import partial
from pathlib import Path

from demo.forgery import pass_a_failed_check
from demo.stage import ROOT, Stage, play

HERE = Path(__file__).resolve().parent
SESSION = "demo"
TASK = "The tests of fairshare fail. Find out why, mend the code and show that all tests pass."
WINDOW, RESERVE = "9000", "1000"
"""Small on purpose, in tokens: the tests' output and the file they read do not fit for long, so the view is compacted."""
TOOLS = "edit_file,list_files,read_file,run_command,search,update_plan"
"""What the script calls: the contracts of all tools would take a third of so small a window."""


def job(stage: Stage, turns: Path) -> None:
    """The main job, step by step.

    Raises:
        NotTrue: a step did not do what its heading says.
    """
    stage.heading("a sample repository", "A small package with a failing test, copied into a work folder of its own.")
    shutil.copytree(HERE / "sample", stage.work, ignore=shutil.ignore_patterns("__pycache__"))
    if shutil.which("git"):
        author = ("-c", "user.name=demo", "-c", "user.email=demo@localhost", "-c", "commit.gpgsign=false")
        for words in (("init", "--quiet"), ("add", "--all"), (*author, "commit", "--quiet", "-m", "fairshare")):
            stage.command("git", *words)
    before = stage.command("python", "-B", "-m", "pytest", "-q", show=1)
    stage.expect(before.returncode == 1 and "2 failed, 3 passed" in before.stdout, "two of its five tests fail")

    stage.heading("up", "The real Temporal server, a real Postgres, a file store and a worker start by themselves.")
    stage.salience("up")

    stage.heading(
        "a session, and kill -9 of its worker in the middle",
        "A scripted model (no language model: a fixed list of turns) mends the code; the session survives.",
    )
    first = stage.worker()["pid"]
    killed = stage.run_killing_the_worker(
        "run", TASK, "--session", SESSION, "--cwd", str(stage.work), "--model", f"script:{turns}",
        "--window", WINDOW, "--reserve", RESERVE, "--tools", TOOLS, "--constraint", "Do not change the tests.",
        at_model_call=4,
    )  # fmt: skip
    now = stage.worker()
    stage.expect(killed == first and now["pid"] != first, f"worker {killed} died, its supervisor started {now['pid']}")
    events = stage.events(SESSION)
    stage.expect(events[-1]["payload"].get("reason") == "answered", "the session went on by itself and answered")
    answers = [event["payload"]["turn"] for event in events if event["type"] == "ModelResponseReceived"]
    stage.expect(len(set(answers)) == len(answers) == 7, f"its {len(answers)} answered turns have one answer each")
    written = [event["payload"]["path"] for event in events if event["type"] == "FileWritten"]
    stage.expect(written == ["fairshare/split.py"], "the edit happened once, and nothing else was written")

    stage.heading("the work", "Not the session's word: the tests, run again by us.")
    after = stage.command("python", "-B", "-m", "pytest", "-q", show=1)
    stage.expect(after.returncode == 0 and "5 passed" in after.stdout, "all five tests pass")
    if (stage.work / ".git").exists():
        stage.command("git", "--no-pager", "diff", "--unified=1", show=100)

    stage.heading("the timeline", "Every event, decoded from the session's Temporal history.")
    stage.salience("events", SESSION)

    stage.heading(
        "the compactions",
        "One before a turn, over the threshold; one after the provider, played by the script, called the prompt too long.",
    )
    listed = stage.salience("compactions", SESSION)
    made = [event["payload"] for event in events if event["type"] == "CompactionCompleted"]
    stage.expect([done["trigger"] for done in made] == ["proactive", "reactive"], "one proactive and one reactive")
    stage.expect("checkpoint 2, serves" in listed, "the second goes on from the first, and serves")
    prompts = stage.salience("context", SESSION, "--text")
    stage.expect(
        TASK in prompts and "Do not change the tests." in prompts,
        "task and constraint are in the last context, word for word",
    )

    stage.heading("the context", "What the model saw at its last call, by section, and what was left out and why.")
    seen = stage.salience("context", SESSION)
    stage.expect("are summarised by compaction" in seen, "what was left out is named, with the reason")

    stage.heading("the figures", "Tokens as the script reports them; calls, times, reductions.")
    stage.salience("stats", SESSION)

    stage.heading("verify", "Chain, history, every context compiled again, invariants, contents: all checked.")
    stage.salience("verify", SESSION)

    stage.heading(
        "a forged copy",
        "In a copy of the home, a superuser turns the failed test run into a passed one: exit code 1 becomes 0.",
    )
    stage.salience("down")
    stage.copy_home()
    stage.salience("up", "--no-worker", copy=True)
    seq = pass_a_failed_check(stage.copy, SESSION)
    stage.say(f"  one byte of event {seq} is another one now")
    said = stage.salience("verify", SESSION, code=4, copy=True)
    stage.expect(re.search(rf"\b{seq}\b", said) is not None, f"verify ends with code 4 and names event {seq}")
    stage.salience("down", copy=True)

    home = str(stage.home).replace(f"{ROOT}/", "")
    stage.heading("done", "Nothing runs any more; the session is still there.")
    stage.say(f"  to look around: export SALIENCE_HOME=$PWD/{home} PATH=$PWD/.venv/bin:$PATH")
    stage.say(f"                  salience up; salience show {SESSION} --full")


def main() -> int:
    """Run the demo; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "demo", help="wiped at the start")
    parser.add_argument("--turns", type=Path, default=HERE / "turns.yaml", help="what the scripted model says")
    asked = parser.parse_args()
    return play(Stage(asked.folder), partial(job, turns=asked.turns.absolute()))


if __name__ == "__main__":
    sys.exit(main())
