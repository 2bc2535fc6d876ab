"""A run's history is kept for ever: each closed run is archived once, by a workflow of its own (spec EVT-5)."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from salience.model import calls
    from workflows import calling

SWEEP_WORKFLOW_TYPE = "ArchiveSweep"


@workflow.defn(name=calls.ARCHIVE_WORKFLOW_TYPE)
class ArchiveRun:
    """Wait for a run's end, journal its last events, and archive its history."""

    @workflow.run
    async def run(self, asked: calls.ArchiveRun) -> calls.Archived:
        """Archive one run; returns where it lies."""
        await calling.start(calls.AWAIT_CLOSE, asked, "await", type(None))
        return await calling.start(calls.ARCHIVE_RUN, asked, "archive", calls.Archived)


@workflow.defn(name=SWEEP_WORKFLOW_TYPE)
class ArchiveSweep:
    """Archive the runs that ended without saying so: terminated, cancelled or timed out."""

    @workflow.run
    async def run(self) -> int:
        """Archive what is left over; returns how many runs."""
        left = await calling.start(calls.LIST_UNARCHIVED, None, "list", calls.Unarchived)
        for number, ref in enumerate(left.runs):
            await calling.start(calls.ARCHIVE_RUN, ref, f"archive.{number}", calls.Archived)
        return len(left.runs)
