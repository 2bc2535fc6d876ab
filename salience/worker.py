"""A worker serves the task queues of its role; it can be killed at any moment, and another goes on (spec LOOP-3).

python -m salience.worker --role all
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError
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
from temporalio.service import RPCError

from activities.archive import ArchiveActivities
from activities.compaction import CompactionActivities, Compactions
from activities.context import ContextActivities, Contexts
from activities.model import ModelActivities
from activities.projection import Projector
from activities.session import SessionActivities
from activities.tools.activity import ToolActivities
from salience.errors import BackendUnavailable, SalienceError, UsageError
from salience.local import resolve
from salience.local.home import Home
from salience.model import calls
from salience.queues import ALL, ROLES, Activities, build_workers
from salience.settings import Settings
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles
from salience.store.configured import blobs_of
from salience.store.history import Histories
from salience.store.journal import Journal
from salience.store.ledger import Ledger
from salience.store.migrations import migrate, require
from salience.store.postgres import Postgres
from salience.store.sources import Sources
from salience.wire import connect
from workflows.archive import SWEEP_WORKFLOW_TYPE

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


def activities_of(client: Client, settings: Settings, stores: Stores) -> Activities:
    """Every activity by its name, over the stores and the caches of this process."""
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
    return {
        calls.AWAIT_CLOSE: archives.await_close,
        calls.ARCHIVE_RUN: archives.archive_run,
        calls.LIST_UNARCHIVED: archives.list_unarchived,
        calls.OPEN_RUN: sessions.open_run,
        calls.PROJECT: sessions.project,
        calls.BUILD_CONTEXT: building.build_context,
        calls.COMPACT: compacting.compact,
        calls.ROLLBACK: compacting.rollback,
        calls.CALL_MODEL: models.call_model,
        calls.RUN_TOOL: tools.run_tool,
        calls.INSPECT_EFFECT: tools.inspect_effect,
    }


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


async def serve(settings: Settings, role: str = ALL) -> None:
    """Work until SIGTERM or SIGINT; running tools get ten seconds to end.

    Args:
        settings: resolved settings.
        role: one of `ROLES`. Role `workflow` speaks to Temporal only.

    Raises:
        BackendUnavailable: Temporal does not answer, or does not take a worker: the namespace, perhaps.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    ready = Home(settings.home).ready_file(role)
    ready.unlink(missing_ok=True)
    client = await connect(settings)
    stores = Stores.of(settings)
    if role != "workflow":
        await stores.postgres.open()
    workers = build_workers(client, settings.task_queue, role, activities_of(client, settings, stores), stores.ledger)
    try:
        if role in (ALL, "workflow"):
            await ensure_sweep(client, settings)
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())
            ready.parent.mkdir(parents=True, exist_ok=True)
            ready.write_text(str(os.getpid()))
            await stopping.wait()
            await asyncio.gather(*(worker.shutdown() for worker in workers))
    except* (RPCError, RuntimeError) as several:
        said = " ".join(str(several.exceptions[0]).split())[:200]
        raise BackendUnavailable(f"Temporal does not take this worker: {said}", mend="salience doctor") from several
    finally:
        with suppress(OSError):
            if ready.read_text() == str(os.getpid()):  # not that of another worker of this role, which started since
                ready.unlink()
        await stores.postgres.close()


def bring_schema(settings: Settings) -> None:
    """Have a database of one's own at this release's schema; the embedded one is brought there by its supervisor.

    Args:
        settings: as they were read: a URI in them is of a database of one's own.

    Raises:
        BackendUnavailable: Postgres did not answer, or its schema is older and nobody here may change it.
        VerificationFailed: the schema is of another or a later release.
    """
    owner = settings.postgres_owner_dsn.get_secret_value()
    if owner:
        migrate(owner)
    elif settings.postgres_dsn:
        require(settings.postgres_dsn)


def main(arguments: Sequence[str] | None = None) -> None:
    """The process the supervisor starts."""
    parser = argparse.ArgumentParser(prog="salience.worker", description=__doc__)
    parser.add_argument("--role", choices=ROLES, default=ALL)
    role: str = parser.parse_args(arguments).role
    settings = Settings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if role in (ALL, "context"):
        bring_schema(settings)
    asyncio.run(serve(resolve(settings, postgres=role != "workflow"), role))


def program() -> int:
    """`main` with its errors as one line, for a log that somebody reads; returns the exit code."""
    try:
        main()
    except SalienceError as error:
        print(f"salience: {error.line()}", file=sys.stderr)
        return error.exit_code
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        print(f"salience: invalid settings: {said}", file=sys.stderr)
        return UsageError.exit_code
    return 0


if __name__ == "__main__":
    code = program()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of Temporal's core may call into an interpreter that is ending, which aborts the process after its work.
    os._exit(code)
