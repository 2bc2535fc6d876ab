"""Transcripts and inputs to build from: what a session would have recorded, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from salience.context import BuildInput, Tokenizer
from salience.context.estimate import estimate
from salience.model.canonical import canonical_json, digest
from salience.model.environment import EarlierRun, Environment, InstructionFile
from salience.model.message import ModelResponse, TextBlock, ToolCallBlock
from salience.model.session import ContextConfig, SessionConfig
from salience.model.state import Goal, OpenQuestion, State
from salience.model.tool import ToolSpec
from salience.projection.gauge import Gauge
from salience.projection.stretch import Stretch
from salience.projection.transcript import NOT_RUN, Entry

BASH = ToolSpec(
    name="run_command",
    description="Run a command.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    tool_class="effect",
)
NO_COMPACTION = Gauge(refused_until=2**40)
"""As after a compaction that was refused: what does not fit is reduced."""
READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object"}, tool_class="read")


class Words:
    """A tokenizer that remembers what it was asked to count."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tokenizer = Tokenizer("words", self._count)

    def _count(self, text: str) -> int:
        self.asked.append(text)
        return estimate(text)


@dataclass
class Record:
    """A session's record: entries in position order and the blobs they name."""

    entries: list[Entry] = field(default_factory=list[Entry])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])
    current_request: str = ""
    groups: int = 0

    def text_of(self, ref: str) -> bytes:
        """The bytes of a digest, remembering that it was asked for."""
        self.asked.append(ref)
        return self.blobs[ref]

    def keep(self, data: bytes) -> str:
        """Put bytes where `text_of` finds them."""
        ref = digest(data)
        self.blobs[ref] = data
        return ref

    def prompt(self, text: str, *, spilled: bool = False) -> None:
        """The user says something."""
        at = len(self.entries)
        ref = self.keep(text.encode()) if spilled else None
        self._append(
            Entry(
                message_id=f"u{at}", position=at, kind="prompt", group=f"p{at}", turn=0, event_id=f"run:{at}:message",
                seq=at + 1, text=None if spilled else text, ref=ref, size_bytes=len(text.encode()), preview=text[:200],
            )
        )  # fmt: skip
        self.current_request = f"u{at}"

    def exchange(self, said: str, results: list[str], *, failed: int = 0, unanswered: int = 0) -> None:
        """The model says something and calls a tool for each result.

        The last `failed` of the results are errors; `unanswered` more calls were never run.
        """
        first = len(self.entries)
        group = f"g{first}"
        calls = [
            ToolCallBlock(tool_call_id=f"c{first}.{i}", name="run_command", args={"command": f"echo {i}"})
            for i in range(len(results) + unanswered)
        ]
        response = ModelResponse(model="m", content=(TextBlock(text=said), *calls), stop_reason="end_turn")
        ref = self.keep(canonical_json(response.plain()))
        self._append(
            Entry(
                message_id=f"m{first}", position=first, kind="response", group=group, turn=0,
                event_id=f"run:{first}:response", seq=first + 1, ref=ref, preview=said[:200],
            )
        )  # fmt: skip
        for i, text in enumerate(results):
            at = len(self.entries)
            data = text.encode()
            inline = len(data) < 200
            self._append(
                Entry(
                    message_id=f"r{at}", position=at, kind="result", group=group, turn=0, event_id=f"run:{at}:result",
                    seq=at + 1, text=text if inline else None, ref=None if inline else self.keep(data),
                    size_bytes=len(data), preview=text[:200], tool_call_id=f"c{first}.{i}", tool_name="run_command",
                    is_error=i >= len(results) - failed,
                )
            )  # fmt: skip
        for i in range(len(results), len(results) + unanswered):
            at = len(self.entries)
            self._append(
                Entry(
                    message_id=f"r{first}.{i}", position=at, kind="result", group=group, turn=0,
                    event_id=f"run:{first}:response", seq=first + 1, text=NOT_RUN, is_error=True,
                    tool_call_id=f"c{first}.{i}", tool_name="run_command",
                )
            )  # fmt: skip
        self.groups += 1

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)

    def inputs(self, turn: int = 1, **changes: Any) -> BuildInput:
        """The inputs of a build from the record as it stands; entries are a copy, which the record does not change."""
        context: Mapping[str, Any] = changes.pop("context", {})
        config: dict[str, Any] = {
            "cwd": "/work",
            "model_settings": {"model": "script:x"},
            "context_config": ContextConfig(
                **{"context_window_tokens": 16_000, "reserved_output_tokens": 1_000, **context}
            ),
            "hard_constraints": ("never touch main",),
            **changes.pop("config", {}),
        }
        rules = self.keep(b"Use tabs.")
        values: dict[str, Any] = {
            "session_id": "s",
            "turn": turn,
            "call_index": turn,
            "source_event_id": f"run:{len(self.entries)}:bundle",
            "source_seq": len(self.entries),
            "config": SessionConfig.model_validate(config),
            "environment": Environment(
                cwd="/work",
                platform="linux",
                vcs_head="abc",
                instructions=(InstructionFile(path="AGENTS.md", digest=rules, size_bytes=9),),
            ),
            "environment_ref": "e" * 64,
            "tools": (BASH, READ),
            "state": State(
                session_id="s",
                goal=Goal(user_goal="mend the build", user_goal_ref=None),
                open_questions=(OpenQuestion(question_id="q", question="which branch?"),),
            ),
            "earlier_runs": (),
            "entries": Stretch(self.entries),
            "current_request": self.current_request,
            "checkpoint": None,
            "gauge": NO_COMPACTION,
            "text_of": self.text_of,
        }
        return BuildInput(**{**values, **changes})


RUN = EarlierRun(
    run_id="old", reason="answered", turns=3, ended_at="2026-01-01T00:00:00Z", first_prompt="a", last_words="b"
)
