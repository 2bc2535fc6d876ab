"""Temporal history as the server holds it: read back to a cursor, or whole; never interpreted here (design §2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from salience.errors import BackendUnavailable, NotFound
from salience.log.decode import is_close

_RPC = timedelta(seconds=15)
_FIRST_PAGE = 32
"""A turn writes some twenty events, and the server's time grows with the page: 14 ms for 256 events, 5 ms for 32."""
_PAGE = 256


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run of a session as Temporal lists it."""

    session_id: str
    run_id: str
    running: bool


def quoted(value: str) -> str:
    """A string as a visibility query literal."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Histories:
    """Reads histories through one Temporal client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def since(
        self, session_id: str, run_id: str, after: int, *, upto_activity: str | None = None
    ) -> list[HistoryEvent]:
        """The events of a run that follow history event `after`, oldest first.

        Read in reverse, so that the cost depends on what is new and not on the run's age.

        Args:
            upto_activity: end with the ActivityTaskScheduled of this activity id, so that a retry reads the same range.

        Raises:
            NotFound: Temporal does not hold this run (any more).
            BackendUnavailable: Temporal did not answer.
        """
        found: list[HistoryEvent] = []
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=session_id, run_id=run_id),
                maximum_page_size=_PAGE if found or not after else _FIRST_PAGE,
                next_page_token=token,
            )
            try:
                page = await self._client.workflow_service.get_workflow_execution_history_reverse(request, timeout=_RPC)
            except RPCError as error:
                raise _mended(error, session_id) from error
            for event in page.history.events:
                if event.event_id <= after:
                    break
                found.append(event)
            token = page.next_page_token
            if not token or not page.history.events or page.history.events[-1].event_id <= after + 1:
                break
        found.reverse()
        if upto_activity is not None:
            for index in range(len(found) - 1, -1, -1):
                scheduled = found[index]
                if (
                    scheduled.HasField("activity_task_scheduled_event_attributes")
                    and scheduled.activity_task_scheduled_event_attributes.activity_id == upto_activity
                ):
                    return found[: index + 1]
            # Taken already: an earlier attempt of this activity projected up to its own schedule event.
            return []
        return found

    async def whole(self, session_id: str, run_id: str) -> list[HistoryEvent]:
        """All events of a run, oldest first; raises as `since`."""
        return await self.since(session_id, run_id, 0)

    async def await_close(self, session_id: str, run_id: str) -> None:
        """Return when the run has ended; the server is asked to answer when it does, not polled."""
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryRequest(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=session_id, run_id=run_id),
                wait_new_event=True,
                history_event_filter_type=2,  # the close event only
                next_page_token=token,
            )
            try:
                page = await self._client.workflow_service.get_workflow_execution_history(
                    request, timeout=timedelta(seconds=65)
                )
            except RPCError as error:
                if error.status == RPCStatusCode.DEADLINE_EXCEEDED:
                    continue
                raise _mended(error, session_id) from error
            if any(is_close(event) for event in page.history.events):
                return
            token = page.next_page_token

    async def runs(self, session_id: str) -> list[RunRef]:
        """The runs of a session that Temporal still knows, oldest first."""
        return await self._list(f"WorkflowId = {quoted(session_id)}")

    async def closed(self, workflow_type: str) -> list[RunRef]:
        """Every closed run of a workflow type within retention, oldest first."""
        return await self._list(f"WorkflowType = {quoted(workflow_type)} AND ExecutionStatus != 'Running'")

    async def _list(self, query: str) -> list[RunRef]:
        try:
            found = [
                (execution.start_time, RunRef(execution.id, execution.run_id, execution.status == _RUNNING))
                async for execution in self._client.list_workflows(query, rpc_timeout=_RPC)
            ]
        except RPCError as error:
            raise _mended(error, "") from error
        return [ref for _, ref in sorted(found, key=lambda pair: pair[0])]


_RUNNING = WorkflowExecutionStatus.RUNNING


def _mended(error: RPCError, session_id: str) -> NotFound | BackendUnavailable:
    if error.status == RPCStatusCode.NOT_FOUND:
        return NotFound(f"Temporal holds no history of {session_id}")
    return BackendUnavailable(f"Temporal did not answer: {error.message}", mend="salience doctor")
