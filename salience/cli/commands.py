"""Every command is named here and loaded when it is called: `salience --help` imports nothing heavy (design §7)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from salience.cli.complaint import complaint_of, show


class Entry(NamedTuple):
    """One command: where its function or group lies, and its line in the list."""

    panel: str
    target: str
    line: str
    group: bool = False


MARKUP: Literal["markdown"] | None = "markdown" if sys.stdout.isatty() else None
"""Help is plain text in a pipe."""
STACK, WORK, READ, RUNTIME = "Stack", "Sessions", "Reading", "Deployment"

COMMANDS: dict[str, Entry] = {
    "up": Entry(STACK, "stack:up", "Start the embedded stack: Temporal, Postgres, a worker."),
    "down": Entry(STACK, "stack:down", "End the embedded stack; the data stay unless --purge is given."),
    "doctor": Entry(
        STACK,
        "stack:doctor",
        "Check the installation and the stack; say what mends it.",
    ),
    "run": Entry(WORK, "sessions:run", "Give a session a task and follow it to its end."),
    "start": Entry(WORK, "sessions:start", "Start a session; return when its task is acknowledged."),
    "say": Entry(WORK, "sessions:say", "Say something to a session; one that has ended goes on."),
    "interrupt": Entry(WORK, "verbs:interrupt", "Stop what a session is doing; it stays open for input."),
    "pause": Entry(WORK, "verbs:pause", "Let a session start nothing further until `resume`."),
    "resume": Entry(WORK, "sessions:resume", "Unpause a session, or start the next run of one that has ended."),
    "close": Entry(WORK, "verbs:close", "End a session; it stays readable and resumable."),
    "compact": Entry(WORK, "compacting:compact", "Put a summary in the place of older history."),
    "rollback": Entry(WORK, "compacting:rollback", "Bring back what a compaction summarised."),
    "export": Entry(WORK, "moving:export", "Write a session to a file that another Salience can go on with."),
    "import": Entry(WORK, "moving:import_", "Make a session of an exported file."),
    "list": Entry(READ, "reading:list_", "List sessions, the latest change first."),
    "show": Entry(READ, "showing:show", "Show a session and its transcript."),
    "events": Entry(READ, "reading:events", "Print the events of a session's log."),
    "state": Entry(READ, "reading:state", "Show where the work stands, now or at any past event."),
    "context": Entry(READ, "seeing:context", "Show what the model saw, and what was left out and why."),
    "compactions": Entry(READ, "compacting:compactions", "List a session's compactions: sizes, checks, rollbacks."),
    "stats": Entry(READ, "reading:stats", "Show a session's figures: tokens, time, calls, reductions."),
    "artifact": Entry(READ, "artifacts:group", "List, show and search what a session produced.", group=True),
    "verify": Entry(READ, "verify:verify", "Check a session's record against its raw log."),
    "worker": Entry(RUNTIME, "working:worker", "Run a worker in the foreground until it is stopped."),
    "schema": Entry(RUNTIME, "schema:schema", "Print the JSON Schema of a public type, or list the types."),
}


class Later(TyperCommand):
    """A command that is known by its line and loaded when someone wants more of it."""

    def __init__(self, name: str, entry: Entry) -> None:
        self._entry = entry
        self._loaded: Any = None
        super().__init__(name=name, help=entry.line, rich_help_panel=entry.panel)

    @property
    def real(self) -> Any:
        """The command itself."""
        if self._loaded is None:
            module, name = self._entry.target.split(":")
            target = getattr(importlib.import_module(f"salience.cli.{module}"), name)
            app = target
            if not isinstance(target, typer.Typer):
                app = typer.Typer(add_completion=False)
                app.command(self.name)(target)
            app.rich_markup_mode = MARKUP
            self._loaded = typer.main.get_command(app)
        return self._loaded

    @property
    def params(self) -> Any:  # type: ignore[override]
        """Its options and arguments."""
        return self.real.params

    @params.setter
    def params(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        del value

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse as the command itself would."""
        return self.real.make_context(info_name, args, parent=parent, **extra)


class LaterGroup(Later):
    """A group of commands that is loaded when someone wants more of it."""

    @property
    def commands(self) -> Any:
        """Its commands by name."""
        return self.real.commands


class Commands(TyperGroup):
    """The list of commands; one whose module is not built is not in it."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, entry in COMMANDS.items():
            if importlib.util.find_spec(f"salience.cli.{entry.target.split(':')[0]}") is not None:
                self.add_command(LaterGroup(name, entry) if entry.group else Later(name, entry), name)


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=MARKUP)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("salience"))
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Salience: durable agent sessions whose context is compiled, explained and verifiable.

    Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 verification failed, 5 backend unavailable.
    """
    del version
    if debug:
        os.environ["SALIENCE_DEBUG"] = "1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors become one line on stderr (design §7).

    Args:
        arguments: the words after `salience`; None for those of the process, which then ends with the exit code.

    Returns:
        The exit code.
    """
    if arguments is not None:
        return _run(list(arguments))
    code = _run(sys.argv[1:])
    if "temporalio.bridge" not in sys.modules:
        return code
    # Threads of Temporal's core may call into an interpreter that is ending, which aborts the process after its work.
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = typer.main.get_command(app)(args=words or ["--help"], prog_name="salience", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # The reader has what it wanted (`salience events S | head`); the interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        return show(complaint_of(error), error)
