"""What the Docker engine refuses: it is said with what can be done about it."""

import asyncio

import docker
import pytest
import requests

from chaos.errors import EnvironmentFailure
from harness.backends.docker.engine import EngineCalls

pytestmark = pytest.mark.unit


def refusal(error: Exception) -> str:
    """What a run says of it."""

    def ask() -> None:
        raise error

    with pytest.raises(EnvironmentFailure) as refused:
        asyncio.run(EngineCalls("some-image").call(ask))
    return str(refused.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (docker.errors.ImageNotFound("404"), "has no image some-image: build it"),
        (docker.errors.APIError("500", explanation="mkdir /x: no space left on device"), "docker system df"),
        (docker.errors.APIError("500", explanation="could not select device driver"), "NVIDIA Container Toolkit"),
        (docker.errors.APIError("409", explanation="the name is in use"), "refuses: the name is in use"),
        (requests.ConnectionError("FileNotFoundError(2, 'No such file or directory')"), "start it"),
        (requests.ReadTimeout("timed out"), "the Docker engine does not answer: timed out"),
    ],
)
def test_a_refusal_says_what_to_do(error, said):
    assert said in refusal(error)


def test_an_address_that_is_not_free_yet_is_asked_for_again():
    asked = []

    async def ask() -> str:
        asked.append(1)
        if len(asked) < 3:
            raise EnvironmentFailure("the Docker engine refuses: Address already in use")
        return "made"

    assert asyncio.run(EngineCalls("some-image").retry(ask)) == "made"
    assert len(asked) == 3
