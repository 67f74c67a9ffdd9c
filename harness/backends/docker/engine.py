"""Calls to the Docker engine on other threads, and messages for its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from chaos.errors import EnvironmentFailure
from chaos.host import containers
from harness.backends.docker.examination import how_to_build

ResultT = TypeVar("ResultT")

# A node that is started again gets its address back, which the engine may still be taking from the dead one.
ADDRESS_RETRY_SECONDS = 60.0
_RETRY_SECONDS = 0.2


# What of its refusals can be mended, and how; else its own words have to do.
_REMEDIES = {
    "no space left on device": "its disk is full: `docker system df` shows why",
    "could not select device driver": "install the NVIDIA Container Toolkit, and restart the engine",
}


class EngineCalls:
    """The calls of a run whose containers are of `image`."""

    def __init__(self, image: str) -> None:
        self._image = image
        # What the engine was asked for and has not answered.
        self._asked: set[asyncio.Task[Any]] = set()

    async def call(self, ask: Callable[[], ResultT]) -> ResultT:
        """Call the engine on another thread.

        Raises:
            EnvironmentFailure: it refuses, or does not answer.
        """
        import docker
        import requests

        asked = asyncio.create_task(asyncio.to_thread(ask))
        self._asked.add(asked)
        asked.add_done_callback(self._on_answer)
        try:
            return await asyncio.shield(asked)
        except docker.errors.ImageNotFound as error:
            missing = f"the Docker engine has no image {self._image}: {how_to_build(self._image)}"
            raise EnvironmentFailure(missing) from error
        except docker.errors.APIError as error:
            raise EnvironmentFailure(
                f"the Docker engine refuses: {_with_remedy(str(error.explanation or error))}"
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise EnvironmentFailure(containers.why_no_engine(error)) from error

    async def retry(self, ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Again and again where what is in the way is a dead node's address that is not free yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ADDRESS_RETRY_SECONDS
        while True:
            try:
                return await ask()
            except EnvironmentFailure as error:
                if "Address already in use" not in str(error) or loop.time() > deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def answered(self, timeout_seconds: float) -> None:
        """Wait until it has answered all that it was asked, also where whoever asked was interrupted."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=timeout_seconds)

    def _on_answer(self, asked: asyncio.Task[Any]) -> None:
        self._asked.discard(asked)
        if not asked.cancelled():
            # Nobody may be waiting for it any more.
            asked.exception()


def _with_remedy(refusal: str) -> str:
    for sign, remedy in _REMEDIES.items():
        if sign in refusal:
            return f"{refusal.rstrip('.')}; {remedy}"
    return refusal
