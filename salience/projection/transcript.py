"""The transcript stands in delivery order, not log order, and no call stands in it without its result (spec PRJ-1b, INV 1).

A prompt enters where the first bundle after it was built; results of parallel calls stand in request order; a repeated
message id folds to nothing. Entries hold references; texts lie in blobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

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
    """The fold: `entries` holds what was appended since it was loaded, `seen` the message ids of the session."""

    entries: list[Entry] = field(default_factory=list[Entry])
    seen: set[str] = field(default_factory=set[str])
    length: int = 0
    pending: list[Entry] = field(default_factory=list[Entry])
    calls: list[OpenCall] = field(default_factory=list[OpenCall])
    turn: int = 0
    group: str = ""
    group_event_id: str = ""
    group_seq: int = 0
    current_request: str = ""

    @classmethod
    def load(cls, saved: OpenTranscript, seen: set[str]) -> Transcript:
        """The fold as it was saved, with nothing appended yet."""
        return cls(
            seen=set(seen),
            length=saved.length,
            pending=list(saved.pending),
            calls=list(saved.calls),
            turn=saved.turn,
            group=saved.group,
            group_event_id=saved.group_event_id,
            group_seq=saved.group_seq,
            current_request=saved.current_request,
        )

    def save(self) -> OpenTranscript:
        """What must be remembered to go on with later events."""
        return OpenTranscript(
            length=self.length,
            pending=tuple(self.pending),
            calls=tuple(self.calls),
            turn=self.turn,
            group=self.group,
            group_event_id=self.group_event_id,
            group_seq=self.group_seq,
            current_request=self.current_request,
        )

    def fold(self, event: Event) -> None:
        """Take one event in."""
        payload = event.payload
        match payload:
            case UserPromptSubmitted():
                self._prompt(event, payload)
            case ContextBuilt():
                self.seal(payload.source.seq)
                self.turn = payload.bundle.turn
            case ModelResponseReceived():
                self._response(event, payload)
            case ToolCallRequested():
                self.calls.append(OpenCall(tool_call_id=payload.tool_call_id, name=payload.name))
            case ToolCallFinished() | ToolCallFailed():
                self._result(event, payload)
            case _:
                pass

    def seal(self, upto_seq: int) -> None:
        """Deliver what is due when a bundle is built from everything up to `upto_seq`.

        The open group is closed — calls that never ran get their paired result — and prompts accepted by then enter.
        """
        for call in self.calls:
            self._append(call.result or self._not_run(call))
        self.calls.clear()
        due = [entry for entry in self.pending if entry.seq <= upto_seq]
        self.pending = [entry for entry in self.pending if entry.seq > upto_seq]
        for entry in due:
            self._append(entry)
            self.current_request = entry.message_id

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry.model_copy(update={"position": self.length}))
        self.length += 1

    def _prompt(self, event: Event, payload: UserPromptSubmitted) -> None:
        if payload.message_id in self.seen:
            return
        self.seen.add(payload.message_id)
        self.pending.append(
            Entry(
                message_id=payload.message_id,
                position=-1,
                kind="prompt",
                group=f"p{event.seq}",
                turn=self.turn,
                event_id=event.event_id,
                seq=event.seq,
                run_id=event.run_id,
                text=None if payload.text_ref else payload.text,
                ref=payload.text_ref,
                size_bytes=payload.size_bytes,
                preview=payload.text if payload.text_ref else "",
            )
        )

    def _response(self, event: Event, payload: ModelResponseReceived) -> None:
        self.group = f"g{event.seq}"
        self.group_event_id = event.event_id
        self.group_seq = event.seq
        self._append(
            Entry(
                message_id=f"m{event.seq}",
                position=-1,
                kind="response",
                group=self.group,
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
            group=self.group,
            turn=self.turn,
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
        for index, call in enumerate(self.calls):
            if call.tool_call_id == payload.tool_call_id and call.result is None:
                self.calls[index] = call.model_copy(update={"result": entry})
                return

    def _not_run(self, call: OpenCall) -> Entry:
        return Entry(
            message_id=f"r{self.group_seq}.{call.tool_call_id}",
            position=-1,
            kind="result",
            group=self.group,
            turn=self.turn,
            event_id=self.group_event_id,
            seq=self.group_seq,
            text=NOT_RUN,
            is_error=True,
            tool_call_id=call.tool_call_id,
            tool_name=call.name,
        )
