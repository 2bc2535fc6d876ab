"""An event is one line for people: when, in which turn, who, what; what always comes together stands in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from salience.cli.output import short
from salience.model import event as ev
from salience.model.bundle import BundleSummary
from salience.model.event import Event
from salience.model.session import GOOD_ENDINGS

TEXT = 160
NAMED_FILES = 4
_UNREMARKABLE = ("below_threshold", "cooling_down", "messages_not_enough")
"""Decisions after which a context is sent as it is."""


class Line(NamedTuple):
    """One line; `style` is the actor, or `bad` for a failure."""

    time: str
    turn: int
    actor: str
    type: str
    text: str
    style: str

    def __str__(self) -> str:
        return f"{self.time}  {f't{self.turn}':>4}  {self.actor:6}  {self.type:21}  {self.text}".rstrip()


@dataclass(slots=True)
class Timeline:
    """Turns events into lines; remembers the turn and the context that the next model call will use."""

    turn: int = 0
    _context: BundleSummary | None = None

    def take(self, events: Sequence[Event]) -> list[Line]:
        """The lines of events that were recorded together.

        Left out: the start of a tool call, which history records with its end; a context that is sent at once, which
        the line of the model call tells of; single files of a call, which share a line.
        """
        lines: list[Line] = []
        files: list[str] = []
        for at, event in enumerate(events):
            payload = event.payload
            match payload:
                case ev.ContextBuilt(bundle=bundle):
                    self.turn = bundle.turn
                    self._context = bundle
                    if bundle.fits and bundle.decision in _UNREMARKABLE:
                        continue
                case ev.ModelRequestStarted() | ev.ModelResponseReceived() | ev.ModelRequestFailed():
                    self.turn = payload.turn
                case ev.ToolCallStarted() | ev.SessionConfigured():
                    continue
                case ev.FileRead(path=path):
                    files.append(path)
                case ev.FileWritten(path=path, change=change):
                    files.append(f"{path} ({change})")
                case _:
                    pass
            if files and isinstance(payload, (ev.FileRead, ev.FileWritten)):
                following = events[at + 1] if at + 1 < len(events) else None
                if following is not None and following.type == event.type:
                    continue
                lines.append(self._line(event, _several(files)))
                files = []
                continue
            lines.append(self._line(event, self._told(payload)))
        return lines

    def _line(self, event: Event, words: str) -> Line:
        return Line(clock(event.timestamp), self.turn, event.actor, event.type, short(words, TEXT), style_of(event))

    def _told(self, payload: ev.Payload) -> str:
        if isinstance(payload, ev.ModelRequestStarted) and self._context is not None:
            tokens = self._context.tokens
            return f"{payload.model} sees {tokens.total:,} of {tokens.window - tokens.reserved:,} tokens"
        return describe(payload)


def describe(payload: ev.Payload) -> str:
    """What an event says, in a few words."""
    match payload:
        case ev.SessionStarted(config=config):
            return f"{config.model_settings.model} in {config.cwd}" if config else "with the worker's defaults"
        case ev.SessionConfigured(config=config):
            return f"{config.model_settings.model} in {config.cwd}"
        case ev.UserPromptSubmitted():
            size = f" ({payload.size_bytes:,} bytes)" if payload.text_ref else ""
            return f"{payload.text}{size}"
        case ev.SessionResumed():
            return "after a pause" if payload.after == "pause" else "in a new run"
        case ev.SessionForked():
            return f"reset of run {payload.base_run_id} after its history event {payload.base_history_event_id}"
        case ev.TurnInterrupted():
            return payload.reason or "by the user"
        case ev.SessionEnded():
            return f"{payload.reason}: {payload.detail}" if payload.detail else payload.reason
        case ev.ContextBuilt(bundle=bundle):
            usable = bundle.tokens.window - bundle.tokens.reserved
            left = ", ".join(f"{count} {why}" for why, count in bundle.excluded_counts.items())
            problem = f": {bundle.problem}" if bundle.problem else ""
            return (
                f"{bundle.decision}, {bundle.tokens.total:,} of {usable:,} tokens{f', {left}' if left else ''}{problem}"
            )
        case ev.ModelRequestStarted():
            return payload.model
        case ev.ModelResponseReceived():
            return _response(payload)
        case ev.ModelRequestFailed():
            return f"{payload.kind}: {payload.message}"
        case ev.ToolCallRequested():
            return f"{payload.name} {payload.args_preview}"
        case ev.ToolCallStarted():
            return payload.name if payload.attempt == 1 else f"{payload.name}, attempt {payload.attempt}"
        case ev.ToolCallFinished():
            code = f" exit {payload.exit_code}" if payload.exit_code is not None else ""
            return f"{payload.name}{code}, {payload.duration_ms} ms: {payload.preview}"
        case ev.ToolCallFailed():
            return f"{payload.name} {payload.kind}: {payload.preview}"
        case ev.FileRead():
            return payload.path
        case ev.FileWritten():
            return f"{payload.path} ({payload.change})"
        case ev.DiffApplied():
            return f"{counted(payload.files, 'file')}, +{payload.added} -{payload.removed}"
        case ev.StateUpdated():
            return _patch(payload)
        case ev.CompactionStarted():
            return f"{payload.trigger}{f': {payload.focus}' if payload.focus else ''}"
        case ev.CompactionCompleted(checkpoint=made):
            sizes = f"{made.tokens_before:,} → {made.tokens_after:,} tokens"
            return f"{made.compaction_id}, checkpoint {made.number}: {sizes}, {counted(made.messages, 'message')} summarised"
        case ev.CompactionFailed():
            return f"{payload.kind}: {payload.message}"
        case ev.CompactionRolledBack(checkpoint=below):
            serving = f"checkpoint {below.number} serves" if below else "the full history is back"
            return f"{payload.compaction_id}; {serving}, {payload.tokens_before:,} → {payload.tokens_after:,} tokens"
        case _:
            return ""


def style_of(event: Event) -> str:
    """The style of an event's line."""
    match event.payload:
        case ev.ModelRequestFailed() | ev.ToolCallFailed() | ev.CompactionFailed():
            return "bad"
        case ev.SessionEnded(reason=reason):
            return "head" if reason in GOOD_ENDINGS else "bad"
        case _:
            return event.actor


def counted(number: int, thing: str) -> str:
    """A number of things, in words that agree with it."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def clock(timestamp: str) -> str:
    """The local time of day of a timestamp."""
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "--:--:--"


def _response(answer: ev.ModelResponseReceived) -> str:
    usage = answer.usage
    counts = [f"{usage.input_tokens or 0:,} in, {usage.output_tokens or 0:,} out"]
    if answer.call_count:
        counts.append(counted(answer.call_count, "call"))
    return f"[{', '.join(counts)}] {answer.text_preview}"


def _patch(update: ev.StateUpdated) -> str:
    patch, parts = update.patch, list[str]()
    if (plan := patch.plan) is not None:
        done = sum(step.status in ("done", "skipped") for step in plan.steps)
        parts.append(f"plan {plan.status}, {done} of {len(plan.steps)} steps done")
    parts += [f"{'fact' if fact.verified else 'assumption'}: {fact.content}" for fact in patch.facts or ()]
    parts += [f"decision: {made.decision}" for made in patch.decisions or ()]
    parts += [f"question: {asked}" for asked in patch.open_questions or ()]
    parts += [f"{question_id} is resolved" for question_id in patch.resolved_questions or ()]
    return "; ".join(parts)


def _several(files: Sequence[str]) -> str:
    named = ", ".join(files[:NAMED_FILES])
    return named if len(files) <= NAMED_FILES else f"{named} and {len(files) - NAMED_FILES} more"
