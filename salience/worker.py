"""A worker serves one role's task queue; it can be killed at any moment, and another goes on (spec LOOP-3).

python -m salience.worker --role all
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.archive import ArchiveActivities
from activities.attempts import Attempts
from activities.compaction import CompactionActivities, Compactions
from activities.context import ContextActivities, Contexts
from activities.model import ModelActivities
from activities.projection import Projector
from activities.session import SessionActivities
from activities.tools.activity import ToolActivities
from salience.local import resolve
from salience.settings import Settings
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles
from salience.store.configured import blobs_of
from salience.store.history import Histories
from salience.store.journal import Journal
from salience.store.ledger import Ledger
from salience.store.postgres import Postgres
from salience.store.sources import Sources
from salience.wire import connect
from workflows import WORKFLOWS
from workflows.archive import SWEEP_WORKFLOW_TYPE

ROLES = ("all",)
SWEEP_EVERY = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one process."""

    postgres: Postgres
    blobs: BlobStore
    journal: Journal
    bundles: Bundles
    ledger: Ledger

    @classmethod
    def of(cls, settings: Settings) -> Stores:
        """The stores that resolved settings name; nothing is connected yet."""
        postgres = Postgres(settings.postgres_dsn)
        return cls(
            postgres=postgres,
            blobs=blobs_of(settings),
            journal=Journal(postgres, settings.tenant),
            bundles=Bundles(postgres, settings.tenant),
            ledger=Ledger(postgres, settings.tenant),
        )


def build_worker(client: Client, settings: Settings, stores: Stores) -> Worker:
    """A worker for all queues of a deployment.

    The sticky timeout decides how soon another worker takes over the workflows of one that died, the heartbeat throttle
    how soon a lost activity and an interrupt are seen.
    """
    histories = Histories(client)
    projector = Projector(stores.postgres, stores.journal, histories, stores.blobs)
    contexts = Contexts(stores.journal, stores.bundles, stores.blobs)
    archives = ArchiveActivities(stores.journal, histories, projector, stores.blobs)
    sessions = SessionActivities(settings, stores.journal, projector, archives)
    building = ContextActivities(projector, contexts, stores.blobs)
    compacting = CompactionActivities(projector, Compactions(stores.journal, stores.blobs), stores.blobs)
    models = ModelActivities(stores.blobs, stores.ledger, contexts)
    tools = ToolActivities(
        stores.blobs, stores.ledger, contexts.config, Sources(stores.postgres, stores.journal, settings.tenant)
    )
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=WORKFLOWS,
        activities=[
            archives.await_close,
            archives.archive_run,
            archives.list_unarchived,
            sessions.open_run,
            sessions.project,
            building.build_context,
            compacting.compact,
            compacting.rollback,
            models.call_model,
            tools.run_tool,
            tools.inspect_effect,
        ],
        interceptors=[Attempts(stores.ledger, worker_name())],
        # The sandbox guards against code that would not replay, and costs a fifth of a turn's processor time. What it would
        # catch here is caught before a release: every golden history is replayed inside it, and the layer table keeps
        # clocks, randomness and I/O out of `workflows`.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=100,
        max_cached_workflows=500,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=10),
    )


def worker_name() -> str:
    """Who this process is, in ledgers."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def ensure_sweep(client: Client, settings: Settings) -> None:
    """Have runs that were terminated or timed out archived, every few minutes."""
    try:
        await client.create_schedule(
            "salience-archive-sweep",
            Schedule(
                action=ScheduleActionStartWorkflow(
                    SWEEP_WORKFLOW_TYPE, id="archive-sweep", task_queue=settings.task_queue
                ),
                spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=SWEEP_EVERY)]),
                policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
            ),
        )
    except ScheduleAlreadyRunningError:
        return


async def serve(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT; running tools get ten seconds to end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    client = await connect(settings)
    stores = Stores.of(settings)
    await stores.postgres.open()
    ready = settings.home / "run" / "worker.ready"
    try:
        async with build_worker(client, settings, stores):
            await ensure_sweep(client, settings)
            ready.parent.mkdir(parents=True, exist_ok=True)
            ready.write_text(str(os.getpid()))
            await stopping.wait()
    finally:
        ready.unlink(missing_ok=True)
        await stores.postgres.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """The process the supervisor starts."""
    parser = argparse.ArgumentParser(prog="salience.worker", description=__doc__)
    parser.add_argument("--role", choices=ROLES, default="all")
    parser.parse_args(arguments)
    settings = Settings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(resolve(settings)))


if __name__ == "__main__":
    main()
