"""What became of a session after its faults is judged from outside it: inputs, counted effects, its end, its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from salience.client import Salience
from salience.model.event import Event, ToolCallFailed, ToolCallFinished, ToolCallRequested
from tests.chaos.play import EFFECT, Outcome, Play
from tests.chaos.record import recovered
from tests.chaos.toll import Toll

PATIENCE_S = 600.0
"""A session that has not ended by then is stuck; on a machine with other work, a recovery alone may take a minute."""


async def judged(
    play: Play,
    salience: Salience,
    session_id: str,
    toll: Toll,
    *,
    acknowledged: Iterable[str] = ("task",),
    timeout_s: float = PATIENCE_S,
) -> Outcome:
    """Wait until a session has ended, and count what it lost, doubled or left unsaid.

    Args:
        acknowledged: message ids of the inputs that were acknowledged.

    Raises:
        TimeoutError: it does not end; it is counted as stuck.
        AssertionError: its record does not hold; it is counted as unsound.
    """
    toll.add("sessions")
    try:
        outcome = await play.end(salience, session_id, timeout_s=timeout_s)
    except TimeoutError:
        toll.add("sessions stuck")
        raise
    except AssertionError:
        toll.add("unsound records")
        raise
    given = list(acknowledged)
    heard = Counter(
        entry.message_id for entry in await salience.journal.transcript(session_id) if entry.kind == "prompt"
    )
    toll.add("inputs acknowledged", len(given))
    toll.add("inputs lost", sum(not heard[message_id] for message_id in given))
    toll.add("inputs delivered twice", sum(count - 1 for count in heard.values() if count > 1))
    _effects(play, outcome, toll)
    return outcome


def _effects(play: Play, outcome: Outcome, toll: Toll) -> None:
    """Compare what the record says of each effect with what the effect has noted itself."""
    done = play.counted(outcome.session_id)
    for name, kind in effects_of(outcome.events):
        toll.add("effects asked for")
        toll.add("effects doubled", max(0, done[name] - 1))
        toll.add("outcomes unknown, and said so", kind == "outcome_unknown")
        if (kind == "done") != bool(done[name]) and kind != "outcome_unknown":
            toll.add("effects missing")


def effects_of(events: Iterable[Event]) -> list[tuple[str, str]]:
    """(name, how it ended) of every counted effect that a session asked for: `done`, a failure's kind, or `nothing`."""
    names: dict[str, str] = {}
    ends: dict[str, str] = {}
    for event in events:
        match event.payload:
            case ToolCallRequested() as asked if found := EFFECT.search(asked.args_preview):
                names[asked.tool_call_id] = found.group(1)
            case ToolCallFinished() as ended:
                ends[ended.tool_call_id] = "done"
            case ToolCallFailed() as failed:
                ends[failed.tool_call_id] = failed.kind
            case _:
                pass
    return [(name, ends.get(call_id, "nothing")) for call_id, name in names.items()]


def unsure(outcome: Outcome) -> dict[str, bytes]:
    """The files of a session without the one that its effects write."""
    return {name: data for name, data in outcome.files.items() if name != "log.txt"}


def note_recoveries(toll: Toll, outcomes: Iterable[Outcome], moments: Iterable[float]) -> None:
    """Note how long sessions stood still after each moment, as far as anything was left to do."""
    histories = [history for outcome in outcomes for history in outcome.histories]
    toll.recoveries += [seconds for seconds in recovered(histories, list(moments)) if seconds is not None]
