"""Whatever a provider counts and however little it says, a session goes on: no loop of compactions (spec CMP-3, CMP-9)."""

from __future__ import annotations

from collections import Counter

import pytest

from salience.compaction import Refusal
from salience.context import Built
from salience.model import event as ev
from salience.model.compaction import CompactionTrigger
from salience.model.message import Usage
from salience.projection.gauge import fold_gauge
from tests.unit.compaction.compacted_session import Work
from tests.unit.compaction.test_compaction_triggers import event

MOST_OVERFLOWS = 3
"""As the loop has it; one more in a row ends the run."""


class Provider:
    """Counts another way than we do and takes prompts up to its own limit."""

    def __init__(self, factor: float, limit: int, says: str) -> None:
        self._factor = factor
        self._limit = limit
        self._says = says

    def answer(self, built: Built) -> ev.Payload:
        """What a call of it comes to."""
        prompt = int(built.summary.tokens.total * self._factor)
        if prompt <= self._limit:
            usage = Usage(input_tokens=prompt if self._says != "nothing" else None)
            return ev.ModelResponseReceived(
                turn=built.summary.turn, bundle_id=built.summary.bundle_id, response_ref="r", stop_reason="end_turn",
                usage=usage, model="m",
            )  # fmt: skip
        return ev.ModelRequestFailed(
            turn=built.summary.turn,
            bundle_id=built.summary.bundle_id,
            kind="context_overflow",
            message="too long",
            prompt_tokens=prompt if self._says in ("both", "prompt") else None,
            limit_tokens=self._limit if self._says in ("both", "limit") else None,
        )


class Loop:
    """One turn after the other, as the session's workflow takes them."""

    def __init__(self, work: Work, provider: Provider) -> None:
        self.work = work
        self.provider = provider
        self.happened: Counter[str] = Counter()
        self.sizes: list[int] = []

    def fold(self, payload: ev.Payload) -> None:
        """Let the gauge learn of an event."""
        self.work.gauge = fold_gauge(self.work.gauge, event(payload), len(self.work.record.entries))

    def build(self) -> Built:
        """A context, as the event of it is folded."""
        built = self.work.build()
        self.fold(ev.ContextBuilt(bundle=built.summary, source=ev.Anchor(seq=1, head="h"), transition="t"))
        return built

    def compact(self, trigger: CompactionTrigger) -> None:
        """A compaction, taken or refused."""
        made = self.work.planned(trigger)
        if isinstance(made, Refusal):
            self.happened[f"refused {made.kind}"] += 1
            self.fold(ev.CompactionFailed(trigger=trigger, kind=made.kind, message=made.message))
            return
        self.happened[trigger] += 1
        self.work.take(made)
        self.fold(ev.CompactionCompleted(trigger=trigger, checkpoint=made.checkpoint, policy="p", checks=made.checks))

    def turn(self) -> None:
        """Build, compact where it is due, call; after an overflow compact and build again."""
        overflows: list[int] = []
        while True:
            built = self.build()
            if built.summary.decision == "threshold_exceeded":
                self.compact("proactive")
                built = self.build()
            assert built.summary.fits, built.summary.problem
            self.sizes.append(built.summary.tokens.total)
            outcome = self.provider.answer(built)
            self.fold(outcome)
            if isinstance(outcome, ev.ModelResponseReceived):
                return
            overflows.append(built.summary.tokens.total)
            assert overflows == sorted(set(overflows), reverse=True), "a prompt that was too long came again"
            assert len(overflows) <= MOST_OVERFLOWS, overflows
            self.compact("reactive")


@pytest.mark.parametrize("says", ["both", "limit", "prompt", "usage", "nothing"])
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.4, 2.5])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_session_goes_on_whatever_the_provider_counts_and_says(says: str, factor: float, share: float) -> None:
    """The window may be half of what was configured, and the provider may count from 0.7 to 2.5 times what we do."""
    work = Work(window=16_000, reserved=1_000)
    loop = Loop(work, Provider(factor, int(15_000 * share), says))
    work.say("mend the build")
    turns = 70
    for n in range(turns):
        loop.turn()
        if n % 10 == 9:
            work.say(f"and then {n}")
        work.call(f"step {n}", ["a line of output\n" * 20, "short"], failed=n % 7 == 0, wrote=[f"src/{n % 9}.py"])
    assert sum(loop.happened.values()) <= turns // 4, loop.happened
    assert loop.happened["reactive"] <= 2, "an overflow teaches"
