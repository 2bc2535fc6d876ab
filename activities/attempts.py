"""Every activity beats while it runs, and a repeated attempt leaves a row: history keeps only the last one (design §2)."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.heartbeat import beating
from salience.errors import BackendUnavailable
from salience.model import calls
from salience.store.ledger import Ledger


class Attempts(Interceptor):
    """Wraps all activities of a worker."""

    def __init__(self, ledger: Ledger, worker: str) -> None:
        self._ledger = ledger
        self._worker = worker

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Beating(next, self._ledger, self._worker)


class _Beating(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, ledger: Ledger, worker: str) -> None:
        super().__init__(next)
        self._ledger = ledger
        self._worker = worker

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        async with beating():
            if info.attempt > 1 and info.workflow_id and info.workflow_run_id:
                await self._note(info.workflow_id, info.workflow_run_id, info.activity_id, info.attempt)
            input.args = [_addressed(value, info.workflow_id or "") for value in input.args]
            return await self.next.execute_activity(input)

    async def _note(self, session_id: str, run_id: str, activity_id: str, attempt: int) -> None:
        try:
            await self._ledger.attempt(session_id, run_id, activity_id, attempt, self._worker)
        except BackendUnavailable:
            # The ledger of attempts is evidence, not a condition: the activity itself will meet the outage.
            activity.logger.warning("attempt %s of %s could not be noted", attempt, activity_id)


def _addressed(value: Any, session_id: str) -> Any:
    """An input with its session filled in, where the session meant itself."""
    if getattr(value, "session_id", None) == calls.OWN:
        return value.model_copy(update={"session_id": session_id})
    return value
