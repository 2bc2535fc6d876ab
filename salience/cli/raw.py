"""Events decoded from the raw log itself: history, a run's archive or an imported file, and not the journal (spec EVT-1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from activities.raw_log import RawLog
from salience.cli.output import tell
from salience.errors import NotFound
from salience.log.decode import Cursor, begin_run, decode
from salience.store.history import Histories

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.model.event import Event

Origin = Literal["temporal", "archive", "import"]


async def raw_events(client: Salience, session_id: str) -> AsyncIterator[tuple[Event, Origin]]:
    """The events of every run whose history is still there, each with where it was read.

    A run is read from Temporal while that holds it, else from its archive; the first of an imported session is a file. Runs
    that neither has are left out, which is said on stderr; the events after them keep their seq.

    Raises:
        NotFound: neither Temporal nor an archive has any history of the session.
        BackendUnavailable: Temporal or a store did not answer.
    """
    sources = await RawLog(client.journal, client.blobs, Histories(client.temporal)).runs(session_id)
    if not sources:
        raise NotFound(
            f"neither Temporal nor an archive has a history of {session_id!r}",
            mend=f"salience events {session_id} reads the journal",
        )
    cursor = Cursor(session_id=session_id)
    for source in sources:
        run = source.run
        if source.imported is not None:
            tell(f"run {run.run_id} from the imported file")
            cursor = source.imported.log.cursor
            for imported in source.imported.log.events:
                if imported is not None:
                    yield imported, "import"
            continue
        if run.base_seq > cursor.seq:
            tell(f"events {cursor.seq + 1} to {run.base_seq}: their history is neither in Temporal nor archived")
            cursor = cursor.model_copy(update={"seq": run.base_seq})
            async for before in client.journal.events(session_id, after=run.base_seq - 1, upto=run.base_seq):
                cursor = cursor.model_copy(update={"last_event_id": before.event_id})
        origin: Origin = "archive" if source.archived else "temporal"
        tell(f"run {run.run_id} from {'its archive' if source.archived else 'Temporal'}")
        cursor = cursor.model_copy(update={"generation": run.generation - 1})
        decoded, cursor = decode(source.events, begin_run(cursor, run.run_id, shared_until=run.shared_until))
        for event in decoded.events:
            yield event, origin
