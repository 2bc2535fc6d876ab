"""The workflow of `bench.bare`, in a module of its own: the sandbox imports it again for every workflow."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow

SIZES = ((40, 900), (110, 250), (180, 420))
"""Bytes of input and result of build_context, call_model and run_tool, as `bench.turns` reads them off a history."""


@activity.defn(name="empty")
async def empty(value: str) -> str:
    """Nothing: the result's size is in the input."""
    return "r" * int(value.split(" ", 1)[0])


@workflow.defn(name="Bare")
class Bare:
    """Turns of three empty activities."""

    @workflow.run
    async def run(self, turns: int) -> int:
        """Run `turns` turns."""
        for _ in range(turns):
            for size_in, size_out in SIZES:
                await workflow.execute_activity(
                    empty,
                    f"{size_out} ".ljust(size_in, "i"),
                    start_to_close_timeout=timedelta(minutes=10),
                    heartbeat_timeout=timedelta(seconds=3),
                )
        return turns
