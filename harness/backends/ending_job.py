"""The end of a job that is under way: who may say it, and who waits for it."""

from __future__ import annotations

import asyncio

from harness.backends.base import Outcome


class EndingJob:
    """A job that has no outcome yet. The first word on it counts; made in a running event loop."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def ended(self) -> Outcome:
        """Wait until the job has completed or cannot continue.

        Raises:
            EnvironmentFailure: nothing runs processes any more (its fork server or engine is gone).
        """
        return await asyncio.shield(self._outcome)

    def on_backend_lost(self, loss: BaseException) -> None:
        """What it runs in is gone, or cannot be had again: nothing can be said of the job."""
        if not self._outcome.done():
            self._outcome.set_exception(loss)

    def give_up(self) -> None:
        """The job hangs: it counts as failed."""
        self._finish("failed")

    def _finish(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
