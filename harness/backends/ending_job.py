"""The outcome of a running job: how it is set, and how to wait for it."""

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
        """Its backend is lost: there is no outcome."""
        if not self._outcome.done():
            self._outcome.set_exception(loss)

    def give_up(self) -> None:
        """The job hangs: mark it as failed."""
        self._finish("failed")

    def _finish(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
