"""A session that builds, compacts and rolls back as its loop does, in memory and without a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from salience.compaction import Compaction, Refusal, compact
from salience.context import Built, EpochState, build
from salience.context.inputs import BuildInput
from salience.model.compaction import Checkpoint, CompactionRecord, CompactionTrigger
from salience.model.message import TextBlock
from salience.model.state import Decision, Fact, FileState, Goal, OpenQuestion, Plan, PlanStep, State, ToolFailure
from salience.model.text import mend
from salience.projection.gauge import QUIET_MESSAGES, Gauge
from salience.projection.stretch import Stretch
from tests.unit.context.context_record import Record

GOAL = "mend the build"
LONG = "a line of output\n" * 120


@dataclass
class Work:
    """A session at one moment: its record, its state, and the checkpoint that serves."""

    window: int = 8_000
    reserved: int = 1_000
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    record: Record = field(default_factory=Record)
    state: State = field(
        default_factory=lambda: State(
            session_id="s", goal=Goal(), open_questions=(OpenQuestion(question_id="q", question="which branch?"),)
        )
    )
    serving: list[Compaction] = field(default_factory=list[Compaction])
    compactions: int = 0
    gauge: Gauge = field(default_factory=Gauge)
    epoch: EpochState | None = None
    turn: int = 0

    def say(self, text: str, *, spilled: bool = False) -> None:
        """The user says something; the first of it is the goal."""
        self.record.prompt(text, spilled=spilled)
        goal = self.state.goal
        self._change(
            goal=goal.model_copy(update={"user_goal": goal.user_goal or text[:4000], "current_task": text[:4000]})
        )

    def call(
        self, said: str, results: Sequence[str], *, failed: int = 0, unanswered: int = 0, wrote: Sequence[str] = ()
    ) -> None:
        """The model says something and calls tools; some fail, some write files."""
        first = len(self.record.entries)
        failed = min(failed, len(results))
        self.record.exchange(said, list(results), failed=failed, unanswered=unanswered)
        for path in wrote:
            file = FileState(modified=True, last_event_id=f"run:{first}:file", change_summary=f"modified by c{first}.0")
            self._change(files={**self.state.files, path: file})
        for at in range(len(results) - failed, len(results) + unanswered):
            failure = ToolFailure(
                tool_call_id=f"c{first}.{at}", name="run_command", kind="error", message=f"broke {first}", event_id="e"
            )
            self._change(tool_failures=(*self.state.tool_failures, failure)[-50:])

    def learn(self, name: str) -> None:
        """A fact, a decision and a step of the plan come in."""
        fact = Fact(fact_id=f"f-{name}", content=f"fact {name}", confidence=1, verified=True)
        made = Decision(decision_id=f"d-{name}", decision=f"decision {name}", rationale_summary="because")
        steps = (*self.state.plan.steps, PlanStep(step_id=f"s-{name}", title=f"step {name}", status="done"))
        self._change(
            facts=(*self.state.facts, fact), decisions=(*self.state.decisions, made), plan=Plan(steps=steps[-30:])
        )

    def _change(self, **update: Any) -> None:
        self.state = self.state.model_copy(update=update)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that serves."""
        return self.serving[-1].checkpoint if self.serving else None

    @property
    def previous(self) -> CompactionRecord | None:
        """Its record."""
        return self.serving[-1].record if self.serving else None

    def inputs(self) -> BuildInput:
        """What a build gets now."""
        context = {
            "context_window_tokens": self.window,
            "reserved_output_tokens": self.reserved,
            **self.context,
        }
        entries, point = Stretch(self.record.entries), self.checkpoint
        if point is not None:
            # As the projection has them in memory: of what is summarised, the user messages of the view and no more.
            entries.forget_before(
                point.first_kept, sparing=lambda entry: entry.kind == "prompt", spared_from=point.prompts_from
            )
        return self.record.inputs(
            self.turn,
            context=context,
            state=self.state,
            checkpoint=point,
            gauge=self.gauge,
            **{"entries": entries, **self.changes},
        )

    def build(self) -> Built:
        """The next bundle, from the state of the epoch as a cold process has it."""
        self.turn += 1
        built = build(self.inputs(), self.epoch)
        self.epoch = built.state
        return built

    def planned(
        self,
        trigger: CompactionTrigger = "proactive",
        *,
        generation: int | None = None,
        window: int | None = None,
        focus: str = "",
    ) -> Compaction | Refusal:
        """What a compaction comes to; nothing is changed."""
        return compact(
            self.inputs(),
            self.epoch,
            self.previous,
            generation=generation or self.compactions + 1,
            trigger=trigger,
            window=window,
            focus=focus,
        )

    def take(self, made: Compaction) -> None:
        """Let a compaction serve, as CompactionCompleted does."""
        for ref, data in zip((made.checkpoint.record_ref, made.checkpoint.summary_ref), made.blobs, strict=True):
            assert self.record.keep(data) == ref
        self.compactions += 1
        self.serving.append(made)
        self.gauge = self.gauge.model_copy(update={"settled_until": len(self.record.entries) + QUIET_MESSAGES})

    def roll_back(self) -> None:
        """Bring the full history back."""
        self.serving.clear()


def shown(built: Built) -> dict[int, bool]:
    """The transcript positions a bundle shows, and whether each is masked."""
    return {part.position: part.segment.masked for part in built.prefix if part.position >= 0}


def told(built: Built, position: int) -> str:
    """The text of the message at a transcript position."""
    (part,) = (part for part in built.prefix if part.position == position)
    assert part.message is not None
    return "".join(block.text for block in part.message.content if isinstance(block, TextBlock))


def summary_of(built: Built) -> tuple[str, int]:
    """The text of a bundle's summary, and its tokens."""
    (part,) = (part for part in built.prefix if part.segment.section == "summary")
    return (part.text or b"").decode(), part.tokens


WORDS = st.sampled_from(["warning", "文件读取失败", "0x1f", "a b", "ñandú", "deadbeefcafe0123", "🙂"])
SHORT = st.one_of(st.text(max_size=40).map(mend), WORDS)
RESULT = st.one_of(SHORT, st.builds(lambda word, n: (word + " ") * n, WORDS, st.integers(1, 1_500)))
SAY = st.tuples(st.just("say"), st.one_of(SHORT, st.builds(lambda w, n: (w + "\n") * n, WORDS, st.integers(1, 300))))
CALL = st.tuples(
    st.just("call"),
    SHORT,
    st.lists(RESULT, max_size=4),
    st.integers(0, 2),  # failed
    st.sampled_from([0, 0, 0, 1, 2]),  # unanswered
    st.integers(0, 2),  # files written
)
MANY = st.tuples(st.just("many"), st.integers(1, 25))
STEP = st.one_of(SAY, CALL, CALL, CALL, MANY)
STEPS = st.lists(STEP, min_size=1, max_size=14)


def play(work: Work, step: tuple[Any, ...]) -> None:
    """Do one step of the session."""
    at = len(work.record.entries)
    match step:
        case ("say", str(text)):
            work.say(text or "?", spilled=len(text) > 100)
        case ("call", str(said), list(results), int(failed), int(unanswered), int(wrote)):
            results = [str(result) for result in results]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            paths = [f"src/{at}-{n}.py" for n in range(wrote)]
            work.call(said, results, failed=failed, unanswered=unanswered, wrote=paths)
            if wrote:
                work.learn(str(at))
        case ("many", int(count)):
            for n in range(count):
                work.call(f"step {n}", [LONG])
        case _:
            raise ValueError(step)


def played(steps: Sequence[tuple[Any, ...]], window: int = 8_000, **fields: Any) -> Work:
    """A session after its first request and some steps."""
    work = Work(window=window, **fields)
    work.say(GOAL)
    for step in steps:
        play(work, step)
    return work
