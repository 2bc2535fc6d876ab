"""The transcript stands in delivery order, not log order, and no call stands in it without its result (spec PRJ-1b, INV 1).

A prompt enters where the first bundle after it was built; results of parallel calls stand in request order; a repeated
message id folds to nothing. Entries hold references; texts lie in blobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from salience.model.event import (
    ContextBuilt,
    Event,
    ModelResponseReceived,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallRequested,
    UserPromptSubmitted,
)
from salience.model.frozen import Frozen, type_of_sequence
from salience.projection.stretch import Stretch

EntryKind = Literal["prompt", "response", "result"]
NOT_RUN = "This call was not run: the turn ended before it started. Nothing was changed."


class Entry(Frozen):
    """One message of the transcript, by reference.

    `position` is dense from 0; `group` names the atom the entry belongs to: a prompt is an atom of its own, a response
    and all results of its calls are one.
    """

    message_id: str
    position: int
    kind: EntryKind
    group: str
    turn: int
    event_id: str
    seq: int
    run_id: str = ""
    text: str | None = None
    ref: str | None = None
    full_ref: str | None = None
    size_bytes: int = 0
    preview: str = ""
    truncated: bool = False
    is_error: bool = False
    tool_call_id: str | None = None
    tool_name: str | None = None


def is_prompt(entry: Entry) -> bool:
    """Whether an entry is a message of the user."""
    return entry.kind == "prompt"


def prompt_of(entries: Iterable[Entry], message_id: str) -> Entry | None:
    """The user message of an id. Clients choose these ids, so a response or a result may have the same one."""
    return next((entry for entry in entries if is_prompt(entry) and entry.message_id == message_id), None)


class OpenCall(Frozen):
    """A requested call that waits for its result."""

    tool_call_id: str
    name: str
    result: Entry | None = None


class OpenTranscript(Frozen):
    """What a fold must remember between events, small enough for the mutable latest row."""

    length: int = 0
    pending: Annotated[tuple[Entry, ...], type_of_sequence] = ()
    calls: Annotated[tuple[OpenCall, ...], type_of_sequence] = ()
    turn: int = 0
    group: str = ""
    group_event_id: str = ""
    group_seq: int = 0
    current_request: str = ""
    """Message id of the user message that was delivered last."""


@dataclass(slots=True)
class Transcript:
    """The fold: `entries` by position, as far as they are in memory; `seen` the message ids of the session.

    Folding never reads an entry, so a fold may go on from `open` and `seen` alone.
    """

    entries: Stretch[Entry] = field(default_factory=Stretch[Entry])
    seen: set[str] = field(default_factory=set[str])
    open: OpenTranscript = field(default_factory=OpenTranscript)

    def __post_init__(self) -> None:
        if not self.entries:
            self.entries = Stretch(first=self.open.length)
        elif len(self.entries) != self.open.length:
            raise ValueError(f"{len(self.entries)} entries of a transcript of {self.open.length}")

    @property
    def pending(self) -> tuple[Entry, ...]:
        """Prompts that no bundle has been built with yet."""
        return self.open.pending

    @property
    def current_request(self) -> str:
        """Message id of the user message that was delivered last."""
        return self.open.current_request

    def fold(self, event: Event) -> None:
        """Take one event in."""
        payload = event.payload
        match payload:
            case UserPromptSubmitted():
                self._prompt(event, payload)
            case ContextBuilt():
                self.seal(payload.source.seq)
                self._set(turn=payload.bundle.turn)
            case ModelResponseReceived():
                self._response(event, payload)
            case ToolCallRequested():
                call = OpenCall(tool_call_id=payload.tool_call_id, name=payload.name)
                self._set(calls=(*self.open.calls, call))
            case ToolCallFinished() | ToolCallFailed():
                self._result(event, payload)
            case _:
                pass

    def seal(self, upto_seq: int) -> None:
        """Deliver what is due when a bundle is built from everything up to `upto_seq`.

        The open group is closed — calls that never ran get their paired result — and prompts accepted by then enter.
        """
        calls, pending = self.open.calls, self.open.pending
        if not calls and not pending:
            return
        self._set(calls=(), pending=tuple(entry for entry in pending if entry.seq > upto_seq))
        for call in calls:
            self._append(call.result or self._not_run(call))
        for entry in pending:
            if entry.seq <= upto_seq:
                self._append(entry)
                self._set(current_request=entry.message_id)

    def _set(self, **change: Any) -> None:
        self.open = self.open.model_copy(update=change)

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry.model_copy(update={"position": self.open.length}))
        self._set(length=self.open.length + 1)

    def _prompt(self, event: Event, payload: UserPromptSubmitted) -> None:
        if payload.message_id in self.seen:
            return
        self.seen.add(payload.message_id)
        entry = Entry(
            message_id=payload.message_id,
            position=-1,
            kind="prompt",
            group=f"p{event.seq}",
            turn=self.open.turn,
            event_id=event.event_id,
            seq=event.seq,
            run_id=event.run_id,
            text=None if payload.text_ref else payload.text,
            ref=payload.text_ref,
            size_bytes=payload.size_bytes,
            preview=payload.text if payload.text_ref else "",
        )
        self._set(pending=(*self.open.pending, entry))

    def _response(self, event: Event, payload: ModelResponseReceived) -> None:
        group = f"g{event.seq}"
        self._set(group=group, group_event_id=event.event_id, group_seq=event.seq)
        self._append(
            Entry(
                message_id=f"m{event.seq}",
                position=-1,
                kind="response",
                group=group,
                turn=payload.turn,
                event_id=event.event_id,
                seq=event.seq,
                run_id=event.run_id,
                ref=payload.response_ref,
                preview=payload.text_preview,
            )
        )

    def _result(self, event: Event, payload: ToolCallFinished | ToolCallFailed) -> None:
        entry = Entry(
            message_id=f"r{event.seq}",
            position=-1,
            kind="result",
            group=self.open.group,
            turn=self.open.turn,
            event_id=event.event_id,
            seq=event.seq,
            run_id=event.run_id,
            text=None if payload.output_ref else payload.preview,
            ref=payload.output_ref,
            full_ref=payload.full_ref,
            size_bytes=payload.output_bytes,
            preview=payload.preview,
            truncated=payload.truncated,
            is_error=isinstance(payload, ToolCallFailed),
            tool_call_id=payload.tool_call_id,
            tool_name=payload.name,
        )
        calls = list(self.open.calls)
        for index, call in enumerate(calls):
            if call.tool_call_id == payload.tool_call_id and call.result is None:
                calls[index] = call.model_copy(update={"result": entry})
                self._set(calls=tuple(calls))
                return

    def _not_run(self, call: OpenCall) -> Entry:
        return Entry(
            message_id=f"r{self.open.group_seq}.{call.tool_call_id}",
            position=-1,
            kind="result",
            group=self.open.group,
            turn=self.open.turn,
            event_id=self.open.group_event_id,
            seq=self.open.group_seq,
            text=NOT_RUN,
            is_error=True,
            tool_call_id=call.tool_call_id,
            tool_name=call.name,
        )
