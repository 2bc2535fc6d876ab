"""How the session's activities are called: every one has a heartbeat and an end to its retries (design §3).

A worker that dies is noticed after the heartbeat timeout; without one, a lost start would wait out its whole time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from salience.model import calls
    from salience.model.event import ModelFailureKind
    from salience.model.tool import ToolClass

Result = TypeVar("Result")

HEARTBEAT = timedelta(seconds=3)
OUTAGE = timedelta(minutes=30)
"""How long a store may stay away before the run ends as backend_unavailable; the session stays resumable."""

# Everything else that must not be repeated says so itself when it is raised; only this one is the SDK's own.
_NEVER_RETRIED = ["PayloadsTooLarge"]
_PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=1_000,
    non_retryable_error_types=_NEVER_RETRIED,
)
_ONCE = RetryPolicy(maximum_attempts=1)


def start(name: str, value: Any, activity_id: str, result: type[Result]) -> workflow.ActivityHandle[Result]:
    """Start an activity that may be repeated: projection, context, model calls, archives."""
    return workflow.start_activity(
        name,
        value,
        activity_id=activity_id,
        result_type=result,
        start_to_close_timeout=timedelta(hours=1) + HEARTBEAT if name == calls.CALL_MODEL else timedelta(minutes=10),
        schedule_to_close_timeout=timedelta(hours=2) if name == calls.CALL_MODEL else OUTAGE,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=_PATIENT,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def start_tool(
    value: calls.RunTool, activity_id: str, result: type[Result], timeout_s: float
) -> workflow.ActivityHandle[Result]:
    """Start a tool call: an effect at most once, everything else until it succeeds (spec LOOP-4)."""
    patience: ToolClass = value.tool_class
    limit = timedelta(seconds=timeout_s)
    return workflow.start_activity(
        calls.RUN_TOOL,
        value,
        activity_id=activity_id,
        result_type=result,
        # The tool keeps to its own limit; this one is for a tool that does not.
        start_to_close_timeout=limit + timedelta(minutes=10),
        schedule_to_close_timeout=limit + OUTAGE,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=_ONCE if patience == "effect" else _PATIENT,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def was_cancelled(error: ActivityError) -> bool:
    """Whether the activity ended because the workflow cancelled it."""
    return isinstance(error.cause, CancelledError)


def failure_type(error: ActivityError) -> str:
    """The type of the failure as raised in the activity; empty for a timeout."""
    return error.cause.type or "" if isinstance(error.cause, ApplicationError) else ""


def never_started(error: ActivityError) -> bool:
    """Whether the activity waited in the queue until its time was over, so that it changed nothing."""
    return isinstance(error.cause, TimeoutError) and error.cause.type == TimeoutType.SCHEDULE_TO_START


def model_failure(error: ActivityError) -> calls.ModelFailure:
    """What `call_model` says of its failure; a worker that was lost for good says nothing and is named so."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details and isinstance(cause.details[0], dict):
        return calls.ModelFailure.model_validate(cause.details[0])
    kind: ModelFailureKind = "worker_lost" if isinstance(cause, TimeoutError) else "unavailable"
    return calls.ModelFailure(kind=kind, message=str(cause or error))
