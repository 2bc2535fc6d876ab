"""An errand is done between turns, in order, and its asker waits for it: a view never changes under a running turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

Result = TypeVar("Result")


class Errand(Generic[Result]):
    """Something to do between turns, and what came of it."""

    def __init__(self, work: Callable[[], Awaitable[Result]]) -> None:
        self._work = work
        self._done = False
        self._result: Result | None = None
        self._error: ActivityError | None = None

    async def run(self) -> None:
        """Do it; a failure is its asker's, not the loop's."""
        try:
            self._result = await self._work()
        except ActivityError as error:
            self._error = error
        self._done = True

    async def result(self) -> Result:
        """Wait until it is done.

        Raises:
            ApplicationError: the activity failed.
        """
        await workflow.wait_condition(lambda: self._done)
        if self._error is not None or self._result is None:
            cause = self._error.cause if self._error else None
            raise ApplicationError(str(cause or self._error), type="errand_failed") from self._error
        return self._result


class Errands:
    """Errands in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Errand[object]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, work: Callable[[], Awaitable[Result]]) -> Errand[Result]:
        """Put an errand at the end of the queue."""
        errand = Errand(work)
        self._waiting.append(errand)  # type: ignore[arg-type]
        return errand

    async def run(self) -> None:
        """Do all that is waiting."""
        while self._waiting:
            await self._waiting.popleft().run()
