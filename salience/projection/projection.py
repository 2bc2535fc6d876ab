"""Everything the runtime knows of a session is one fold over its events; this is that fold, whole (spec PRJ-1, PRJ-2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from salience.log.decode import Cursor
from salience.model import event as ev
from salience.model import text
from salience.model.artifact import Artifact
from salience.model.compaction import Checkpoint
from salience.model.environment import EarlierRun
from salience.model.frozen import Frozen, type_of_sequence
from salience.model.session import SessionConfig, SessionStatus, status_after
from salience.model.state import State
from salience.model.stats import Stats
from salience.projection.gauge import Gauge, fold_gauge
from salience.projection.state import fold_state
from salience.projection.stats import fold_stats
from salience.projection.transcript import OpenTranscript, Transcript, is_prompt

KEPT_RUNS = 20


class Workplace(Frozen):
    """The session's own standing: configuration, status, leaf, and the runs it has had."""

    config: SessionConfig | None = None
    status: SessionStatus = "active"
    end_reason: str | None = None
    end_detail: str = ""
    leaf_event_id: str | None = None
    created_at: str = ""
    updated_at: str = ""
    run_started_at: str = ""
    turn: int = 0
    finished_model_calls: int = Field(default=0, description="Answers and failures; the index of the next model call.")
    positions: int = 0
    epoch: dict[str, Any] | None = Field(default=None, description="The builder's epoch as of the last ContextBuilt.")
    built_epoch: dict[str, Any] | None = Field(
        default=None, description="{bundle_id, state} of a build not yet in the log."
    )
    checkpoint: Checkpoint | None = Field(default=None, description="The checkpoint that serves; the top of the stack.")
    checkpoint_event_id: str = ""
    compactions: int = Field(default=0, description="Checkpoints that were ever made, rolled-back ones included.")
    gauge: Gauge = Field(default_factory=lambda: Gauge())
    environment_ref: str = Field(default="", description="Environment of the context that was built last.")
    last_words: str = ""
    first_prompt: str = ""
    run_turns: int = 0
    earlier_runs: Annotated[tuple[EarlierRun, ...], type_of_sequence] = ()

    @property
    def verbatim_from(self) -> int:
        """Position of the first exchange that no checkpoint stands for."""
        return self.checkpoint.first_kept if self.checkpoint else 0

    @property
    def prompts_from(self) -> int:
        """Position from which on the user's messages are verbatim."""
        return min(self.checkpoint.prompts_from, self.checkpoint.first_kept) if self.checkpoint else 0


class Standing(Frozen):
    """The fold between two projections without the state: what is small whatever the session has done."""

    # Up to schema 1 the state was stored with the rest.
    model_config = ConfigDict(extra="ignore")

    cursor: Cursor
    head: str
    workplace: Workplace
    stats: Stats
    transcript: OpenTranscript


class SavedProjection(Standing):
    """The fold between two projections; a cache of what the events say."""

    state: State


@dataclass(slots=True)
class Projection:
    """The fold, in memory. `transcript.entries` holds the transcript as far as it was loaded."""

    cursor: Cursor
    head: str
    workplace: Workplace
    state: State
    stats: Stats
    transcript: Transcript
    state_size: int = 0
    """Characters of the state when it was last written or read: they decide whether a turn writes it."""

    @classmethod
    def empty(cls, session_id: str) -> Projection:
        """Before the first event."""
        return cls(
            cursor=Cursor(session_id=session_id),
            head="",
            workplace=Workplace(),
            state=State(session_id=session_id),
            stats=Stats(session_id=session_id),
            transcript=Transcript(),
        )

    @classmethod
    def load(cls, saved: SavedProjection, transcript: Transcript) -> Projection:
        """The fold as it was saved, with its transcript."""
        return cls(saved.cursor, saved.head, saved.workplace, saved.state, saved.stats, transcript)

    def save(self) -> SavedProjection:
        """What must be kept to go on with later events."""
        return SavedProjection.model_construct(
            cursor=self.cursor,
            head=self.head,
            workplace=self.workplace,
            state=self.state,
            stats=self.stats,
            transcript=self.transcript.open,
        )

    def forget(self) -> None:
        """Let go of the entries that a checkpoint stands for; they are to be stored by now."""
        self.transcript.entries.forget_before(
            self.workplace.verbatim_from, sparing=is_prompt, spared_from=self.workplace.prompts_from
        )

    @property
    def lacks(self) -> bool:
        """Whether entries that a build reads are not in memory: a rollback brings back what was forgotten."""
        entries = self.transcript.entries
        return entries.first > self.workplace.verbatim_from or entries.spared_from > self.workplace.prompts_from

    def fold(self, event: ev.Event) -> None:
        """Take one event in."""
        self.workplace = _fold_workplace(self.workplace, event, self.transcript.open.length)
        self.state = fold_state(self.state, event)
        self.stats = fold_stats(self.stats, event, started_at=self.workplace.run_started_at or None)
        self.transcript.fold(event)


def _fold_workplace(workplace: Workplace, event: ev.Event, messages: int) -> Workplace:
    change: dict[str, Any] = {
        "leaf_event_id": event.event_id,
        "updated_at": event.timestamp,
        "gauge": fold_gauge(workplace.gauge, event, messages),
    }
    match event.payload:
        case ev.SessionStarted(config=config):
            change |= {"created_at": event.timestamp, "run_started_at": event.timestamp, "status": "active"}
            if config is not None:
                change["config"] = config
        case ev.SessionConfigured(config=config):
            change["config"] = config
        case ev.SessionResumed(after=after) as resumed:
            change |= {"status": "active", "end_reason": None, "end_detail": ""}
            if after == "end":
                change |= {"run_started_at": event.timestamp, "run_turns": 0, "first_prompt": "", "last_words": ""}
                change["config"] = _resumed(workplace.config, resumed)
        case ev.SessionPaused():
            change["status"] = "paused"
        case ev.UserPromptSubmitted() as prompt:
            change["positions"] = workplace.positions + 1
            if not workplace.first_prompt:
                change["first_prompt"] = text.preview(prompt.text, 300)
        case ev.ContextBuilt(bundle=bundle):
            change |= {"turn": bundle.turn, "environment_ref": bundle.environment_ref}
            if bundle.turn != workplace.turn:
                change["run_turns"] = workplace.run_turns + 1
            built = workplace.built_epoch
            if built is not None and built["bundle_id"] == bundle.bundle_id:
                # Only a build that the log has counts: one whose run ended first never happened for the next.
                change |= {"epoch": built["state"], "built_epoch": None}
        case ev.ModelResponseReceived() as answer:
            change["finished_model_calls"] = workplace.finished_model_calls + 1
            if answer.text_preview:
                change["last_words"] = answer.text_preview
        case ev.ModelRequestFailed():
            change["finished_model_calls"] = workplace.finished_model_calls + 1
        case ev.CompactionCompleted(checkpoint=checkpoint):
            change |= {
                "checkpoint": checkpoint,
                "checkpoint_event_id": event.event_id,
                "compactions": workplace.compactions + 1,
            }
        case ev.CompactionRolledBack(checkpoint=checkpoint):
            change |= {"checkpoint": checkpoint, "checkpoint_event_id": event.event_id}
        case ev.SessionEnded(reason="adjusted"):
            # The work stands as its last run left it: this one has only changed the view.
            before = workplace.earlier_runs[-1] if workplace.earlier_runs else None
            change |= {
                "status": status_after(before.reason if before else "adjusted"),
                "end_reason": before.reason if before else "adjusted",
            }
        case ev.SessionEnded() as ended:
            run = EarlierRun(
                run_id=event.run_id,
                reason=ended.reason,
                turns=workplace.run_turns,
                ended_at=event.timestamp,
                first_prompt=workplace.first_prompt,
                last_words=workplace.last_words,
            )
            change |= {
                "status": status_after(ended.reason),
                "end_reason": ended.reason,
                "end_detail": ended.detail,
                "earlier_runs": (*workplace.earlier_runs, run)[-KEPT_RUNS:],
            }
        case _:
            pass
    return workplace.model_copy(update=change)


def _resumed(config: SessionConfig | None, resumed: ev.SessionResumed) -> SessionConfig | None:
    if config is None:
        return None
    change: dict[str, Any] = {}
    if resumed.model_settings is not None:
        change["model_settings"] = resumed.model_settings
    if resumed.limits is not None:
        change["limits"] = resumed.limits
    if resumed.context_config is not None:
        change["context_config"] = resumed.context_config
    return config.model_copy(update=change) if change else config


def artifacts_of(event: ev.Event) -> list[Artifact]:
    """The artifacts an event brings into the store's index (spec ONT-7)."""
    found: list[tuple[str, Any, str, str, int]] = []
    match event.payload:
        case ev.ToolCallFinished() | ev.ToolCallFailed() as ended:
            kind = "command_log" if ended.name == "run_command" else "tool_output"
            ref = ended.full_ref or ended.output_ref
            if ref:
                found.append((f"output:{ended.tool_call_id}", kind, ref, ended.name, ended.output_bytes))
        case ev.DiffApplied() as diff:
            if diff.diff_ref:
                size = 0
                summary = f"{diff.files} files, +{diff.added} -{diff.removed}"
                found.append((f"diff:{diff.tool_call_id}", "diff", diff.diff_ref, summary, size))
            if diff.effects_ref:
                summary = f"the {diff.files} files that {diff.tool_call_id} touched"
                found.append((f"effects:{diff.tool_call_id}", "dataset", diff.effects_ref, summary, 0))
        case ev.CompactionCompleted(checkpoint=checkpoint):
            name = f"compaction:{checkpoint.compaction_id}"
            summary = f"record of {checkpoint.messages} summarised messages"
            found.append((name, "dataset", checkpoint.record_ref, summary, 0))
        case ev.CompactionFailed(evidence_ref=evidence):
            if evidence is not None:
                summary = "a compaction record that failed its checks"
                found.append((f"compaction:refused:{event.seq}", "dataset", evidence, summary, 0))
        case ev.UserPromptSubmitted() as prompt:
            if prompt.text_ref:
                summary = text.preview(prompt.text, 100)
                found.append((f"prompt:{prompt.message_id}", "file", prompt.text_ref, summary, prompt.size_bytes))
            if prompt.original_ref:
                summary = "a prompt before bad characters were replaced"
                found.append((f"original:{prompt.message_id}", "file", prompt.original_ref, summary, 0))
        case _:
            pass
    return [
        Artifact(
            artifact_id=artifact_id,
            session_id=event.session_id,
            kind=kind,
            uri=f"blob:{ref}",
            summary=summary,
            content_hash=ref,
            size_bytes=size,
            source_event_id=event.event_id,
            created_at=event.timestamp,
        )
        for artifact_id, kind, ref, summary, size in found
    ]
