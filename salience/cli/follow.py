"""A session is followed in its history, where an event stands before any projection has seen it, run after run.

Nothing is written here and nothing waits for us: who stops following changes nothing for the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError, RPCStatusCode

from salience.cli.output import tell
from salience.cli.timeline import Timeline
from salience.errors import BackendUnavailable, NotFound
from salience.log.decode import Cursor, begin_run, decode
from salience.model import event as ev
from salience.model.event import Event
from salience.model.frozen import Frozen, type_of_sequence
from salience.model.message import ModelResponse
from salience.model.session import TerminalReason
from salience.model.state import OpenQuestion
from salience.model.text import decode as decode_text

if TYPE_CHECKING:
    from temporalio.api.history.v1 import HistoryEvent

    from salience.client import Salience
    from salience.projection.projection import SavedProjection

PATIENCE_S = 60.0
"""How long a backend may be away before following gives up; the session waits longer."""
QUIET_S = 15.0
JOURNALED_WITHIN_S = 10.0


class Ending(Frozen):
    """How the followed run ended."""

    session_id: str
    run_id: str = ""
    reason: TerminalReason
    detail: str = ""
    turns: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    final_text: str = ""
    final_ref: str | None = None
    questions: Annotated[tuple[OpenQuestion, ...], type_of_sequence] = ()


class Following:
    """Follows one session from where the journal stands.

    Args:
        client: a connected client; only read from.
        session_id: a session that has been started.
        saved: the session as it stood before, where the following begins; None for one that was not there.
    """

    def __init__(self, client: Salience, session_id: str, saved: SavedProjection | None = None) -> None:
        self._client = client
        self._session_id = session_id
        self._cursor = saved.cursor if saved else Cursor(session_id=session_id)
        self._timeline = Timeline(turn=saved.workplace.turn if saved else 0)
        self._target = ""
        self._next_run = ""
        self._turns: set[int] = set()
        self._model_calls = 0
        self._tool_calls = 0
        self._final: tuple[str, bool] | None = None
        self._questions: list[OpenQuestion] = []

    async def to_the_end(self) -> Ending:
        """Print a line for each event on stderr until the run ends and its end is journaled.

        Raises:
            BackendUnavailable: Temporal stayed away for a minute.
            NotFound: there is no such session.
        """
        async for events in self._batches():
            for line in self._timeline.take(events):
                tell(str(line), line.style)
            for event in events:
                self._count(event)
                if isinstance(event.payload, ev.SessionEnded) and event.run_id == self._target:
                    return await self._ending(event)
        raise BackendUnavailable(f"the history of {self._session_id} ended without an end", mend="salience doctor")

    def _count(self, event: Event) -> None:
        match event.payload:
            case ev.ModelRequestStarted(turn=turn):
                self._turns.add(turn)
                self._model_calls += 1
            case ev.ModelResponseReceived(response_ref=ref):
                self._final = (ref, False)
            case ev.ToolCallFinished(finish=True, output_ref=ref) if ref:
                self._final = (ref, True)
                self._tool_calls += 1
            case ev.ToolCallFinished() | ev.ToolCallFailed():
                self._tool_calls += 1
            case ev.StateUpdated(patch=patch):
                self._questions += patch.open_questions or ()
            case ev.UserPromptSubmitted():
                self._questions.clear()
            case _:
                pass

    async def _ending(self, event: Event) -> Ending:
        assert isinstance(event.payload, ev.SessionEnded)
        await self._journaled(event.run_id)
        return Ending(
            session_id=self._session_id,
            run_id=event.run_id,
            reason=event.payload.reason,
            detail=event.payload.detail,
            turns=len(self._turns),
            model_calls=self._model_calls,
            tool_calls=self._tool_calls,
            final_text=await final_text(self._client, self._final),
            final_ref=self._final[0] if self._final else None,
            questions=tuple(self._questions) if event.payload.reason == "asked" else (),
        )

    async def _journaled(self, run_id: str) -> None:
        """The archive workflow journals the last events after the end; what is read next should find them."""
        for _ in range(round(JOURNALED_WITHIN_S / 0.1)):
            try:
                cursor = (await self._client.journal.standing(self._session_id)).cursor
                if (cursor.run_id == run_id and cursor.ended) or cursor.generation > self._cursor.generation:
                    return
            except (NotFound, BackendUnavailable):
                pass
            await asyncio.sleep(0.1)
        tell(f"the last events of {self._session_id} are not in the journal yet; a worker will add them")

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _batches(self) -> AsyncIterator[list[Event]]:
        """The events of each history event, through continue-as-new, up to the end of the run that is current now."""
        self._target = await self._current_run()
        cursor = self._cursor
        if cursor.ended and cursor.run_id == self._target:
            # The task was given before and its run has ended: what it did is told again.
            cursor = cursor.model_copy(update={"generation": cursor.generation - 1})
        if not cursor.run_id or cursor.ended:
            cursor = begin_run(cursor, self._target)
        while True:
            self._cursor = cursor
            self._next_run = ""
            try:
                async for history_event in self._history(cursor.run_id, cursor.history_id):
                    decoded, cursor = decode([history_event], cursor)
                    if decoded.events:
                        yield decoded.events
            except NotFound:
                # Retention took an earlier run while the journal still stood in it: go on with the current one.
                if cursor.run_id == self._target:
                    raise
            if self._next_run and cursor.run_id == self._target:
                self._target = self._next_run
            cursor = begin_run(cursor, self._next_run or self._target)

    async def _history(self, run_id: str, after: int) -> AsyncIterator[HistoryEvent]:
        """History events of a run as they are recorded; the server answers when there is one, it is not polled."""
        away_since: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            handle = self._client.temporal.get_workflow_handle(self._session_id, run_id=run_id)
            pages = handle.fetch_history_events(wait_new_event=True)
            try:
                while True:
                    event = await self._patiently(pages.__anext__())
                    away_since = None
                    if event.event_id <= after:
                        continue
                    after = event.event_id
                    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                        self._next_run = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
                    yield event
            except StopAsyncIteration:
                return
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise NotFound(f"no session {self._session_id!r}", mend="salience list") from error
                if away_since is None:
                    away_since = loop.time()
                    tell("Temporal does not answer; waiting for it")
                if loop.time() - away_since > PATIENCE_S:
                    raise BackendUnavailable(
                        f"Temporal did not answer for {PATIENCE_S:.0f} s: {error.message}",
                        mend=f"salience doctor; the session goes on: salience show {self._session_id}",
                    ) from error
                await asyncio.sleep(0.5)

    async def _patiently(self, coming: object) -> HistoryEvent:
        """The next history event; says why nothing comes when it takes long."""
        waiting: asyncio.Future[HistoryEvent] = asyncio.ensure_future(coming)  # type: ignore[arg-type]
        told = ""
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=QUIET_S)
                if done:
                    return waiting.result()
                words = quiet_because(self._session_id, await self._client.query(self._session_id, "status"))
                if words != told:
                    told = words
                    tell(words)
        finally:
            waiting.cancel()

    async def _current_run(self) -> str:
        handle = self._client.temporal.get_workflow_handle(self._session_id)
        try:
            return (await handle.describe()).run_id or ""
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise NotFound(f"no session {self._session_id!r}", mend="salience list") from error
            raise BackendUnavailable(f"Temporal did not answer: {error.message}", mend="salience doctor") from error


def quiet_because(session_id: str, status: dict[str, object] | None) -> str:
    """Why nothing happens, from the workflow's own status; None: no worker answered."""
    if status is None:
        return "no worker answers; the session goes on when one is there — salience doctor"
    if status.get("status") == "paused":
        return f"the session is paused — salience resume {session_id}"
    match status.get("step"):
        case "waiting":
            return f"the session waits for input — salience say {session_id} WORDS"
        case "calling_model":
            return f"turn {status.get('turn')}: waiting for the model"
        case "running_tools":
            return f"turn {status.get('turn')}: tools are running"
        case "waiting_to_retry":
            return f"turn {status.get('turn')}: waiting before the model is asked again"
        case step:
            return f"turn {status.get('turn')}: {step}"


async def final_text(client: Salience, final: tuple[str, bool] | None) -> str:
    """The last words: the text of the last response, or the summary that the model finished with."""
    if final is None:
        return ""
    ref, finished = final
    try:
        data = await client.blobs.get(ref)
    except (NotFound, BackendUnavailable):
        return ""
    return decode_text(data) if finished else ModelResponse.model_validate_json(data).text
