"""A job that is under way ends once, whoever says so first."""

import asyncio

import pytest

from chaos.errors import EnvironmentFailure
from harness.backends.ending_job import EndingJob

pytestmark = pytest.mark.unit


def test_the_first_word_on_the_end_counts_for_everybody_who_waits():
    async def end():
        job = EndingJob()
        waiting = [asyncio.create_task(job.ended()) for _ in range(2)]
        await asyncio.sleep(0)
        job.give_up()
        job.on_backend_lost(EnvironmentFailure("too late"))
        return [*await asyncio.gather(*waiting), await job.ended()]

    assert asyncio.run(end()) == ["failed"] * 3


def test_of_a_job_whose_ground_is_gone_nothing_can_be_said():
    async def lose():
        job = EndingJob()
        job.on_backend_lost(EnvironmentFailure("the fork server is gone"))
        job.give_up()
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="fork server"):
                await job.ended()

    asyncio.run(lose())


def test_who_gives_up_waiting_ends_nothing():
    async def give_up():
        job = EndingJob()
        impatient = asyncio.create_task(job.ended())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient})
        job.give_up()
        return await job.ended()

    assert asyncio.run(give_up()) == "failed"
