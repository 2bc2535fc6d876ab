"""Each activity runs in a process of the role it belongs to: a role has a task queue, named from the sessions' own.

A process for everything keeps activities on the sessions' queue, where Temporal hands them over together with the workflow
task that scheduled them; on any other queue each costs a round trip more, which is much of what a turn takes. A process of
role `workflow` sends each to the queue of its role. Which queue it was is no part of replay, so a session goes on when a
deployment is split or put together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, get_args

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    Interceptor,
    PollerBehaviorSimpleMaximum,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from activities.attempts import Attempts
from salience.model import calls
from salience.model.calls import Role
from salience.store.ledger import Ledger
from workflows import WORKFLOWS

ALL: Final = "all"
ROLES: Final = (*get_args(Role), ALL)

Activities = Mapping[str, Callable[..., Any]]
"""What this process can run, by the name of the activity."""

GIVEN_BACK_AFTER = timedelta(milliseconds=50)
FEW = PollerBehaviorSimpleMaximum(1)
"""For queues that are empty but for a moment after a deployment was changed."""


def build_workers(client: Client, task_queue: str, role: str, activities: Activities, ledger: Ledger) -> list[Worker]:
    """The workers of one process, one for each task queue that it serves.

    Args:
        client: connected to Temporal.
        task_queue: the sessions' own.
        role: one of `ROLES`.
        activities: all of them; a worker takes those of its role.
        ledger: where repeated attempts are noted.
    """

    def worker(
        queue: Role, works: Sequence[Callable[..., Any]], *, workflows: bool = False, rare: bool = False
    ) -> Worker:
        return Worker(
            client,
            task_queue=calls.queue_of(task_queue, queue),
            workflows=WORKFLOWS if workflows else (),
            activities=works,
            interceptors=[Attempts(ledger, worker_name()), *([ToRoles()] if role == "workflow" else [])],
            # The sandbox guards against code that would not replay, and costs a fifth of a turn's processor time. What it
            # would catch here is caught before a release: every golden history is replayed inside it, and the layer table
            # keeps clocks, randomness and I/O out of `workflows`.
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=100,
            max_cached_workflows=500 if workflows else 0,
            activity_task_poller_behavior=FEW if rare else PollerBehaviorSimpleMaximum(5),
            # How soon another worker takes over the workflows of one that died.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
            # How soon a lost activity and an interrupt are seen.
            max_heartbeat_throttle_interval=timedelta(seconds=1),
            default_heartbeat_throttle_interval=timedelta(seconds=1),
            graceful_shutdown_timeout=timedelta(seconds=10),
        )

    def of(asked: str) -> list[Callable[..., Any]]:
        return [work for name, work in activities.items() if calls.ROLE_OF[name] == asked]

    match role:
        case "all":
            split = [worker(each, of(each), rare=True) for each in get_args(Role) if each != "workflow"]
            return [worker("workflow", list(activities.values()), workflows=True), *split]
        case "workflow":
            return [worker("workflow", (), workflows=True)]
        case "context" | "model" | "tools":
            return [worker(role, of(role)), worker("workflow", [*of(role), give_back], rare=True)]
        case _:
            raise ValueError(f"no role {role}")


def worker_name() -> str:
    """Who this process is, in ledgers."""
    return f"{socket.gethostname()}:{os.getpid()}"


@activity.defn(dynamic=True)
async def give_back(args: Sequence[RawValue]) -> None:
    """Leave an activity that a process for everything has scheduled to the process whose role it is.

    Nothing was begun: Temporal offers it again at once, and an effect, which is offered once, ends as `unavailable`.
    """
    del args
    raise ApplicationError(
        f"{activity.info().activity_type} belongs to another role",
        type="unavailable",
        next_retry_delay=GIVEN_BACK_AFTER,
    )


class ToRoles(Interceptor):
    """Sends the activities of every workflow to the queues of their roles."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        del input
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.task_queue = calls.queue_of(workflow.info().task_queue, calls.ROLE_OF.get(input.activity, "context"))
        return super().start_activity(input)
