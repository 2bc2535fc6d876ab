"""A second home beside the stack's own: another tenant, another Temporal namespace, another blob store, a worker of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.service import RPCError

from activities.verification import Verification
from salience.client import Salience
from salience.queues import ALL, build_workers
from salience.settings import Settings
from salience.store.history import Histories
from salience.verify.findings import Report
from salience.wire import connect
from salience.worker import Stores, activities_of


@asynccontextmanager
async def home(settings: Settings, folder: Path) -> AsyncIterator[Salience]:
    """A home that knows nothing of the others, with a running worker."""
    name = f"home-{uuid.uuid4().hex[:8]}"
    blobs = folder / name
    blobs.mkdir()
    async with await Salience.connect(settings) as first:
        retention = Duration()
        retention.FromTimedelta(timedelta(days=1))
        await first.temporal.workflow_service.register_namespace(
            RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
        )
    own = settings.model_copy(update={"tenant": name, "temporal_namespace": name, "blob_dir": str(blobs)})
    client = await _ready(own)
    stores = Stores.of(own)
    workers = build_workers(client, own.task_queue, ALL, activities_of(client, own, stores), stores.ledger)
    async with AsyncExitStack() as running, Salience(own, client) as salience:
        for worker in workers:
            await running.enter_async_context(worker)
        yield salience
    await stores.postgres.close()


async def _ready(own: Settings):
    """A client once the namespace is known everywhere in the server."""

    async def ask():
        while True:
            client = await connect(own)
            try:
                await client.count_workflows()
                return client
            except RPCError:
                await asyncio.sleep(0.2)

    return await asyncio.wait_for(ask(), 60)


async def verified(salience: Salience, session_id: str) -> Report:
    """What `salience verify` finds."""
    histories = Histories(salience.temporal)
    verification = Verification(salience.postgres, salience.journal, salience.blobs, histories)
    return await verification.verify(session_id)
