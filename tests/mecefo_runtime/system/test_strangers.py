"""Who connects over TCP without the run's token: for how long it is listened to, and how much of it is kept."""

import asyncio
from contextlib import suppress

import pytest

from mecefo_runtime.system.strangers import BUFFER_BYTES, Strangers
from mecefo_runtime.system.wire import LOOPBACK, encode

pytestmark = pytest.mark.unit

TOKEN = "5e" * 16
DEADLINE_SECONDS = 60.0


def told(*chunks):
    """What a server made of a connection that sends `chunks`: its first message, or the kind of error."""

    async def play():
        outcome = asyncio.get_running_loop().create_future()
        guarded = Strangers(TOKEN)

        async def serve(reader, writer):
            try:
                outcome.set_result(await guarded.hello(reader, DEADLINE_SECONDS))
            except (OSError, ValueError) as error:
                outcome.set_result(type(error).__name__)
            writer.close()

        server = await asyncio.start_server(serve, LOOPBACK, 0, limit=BUFFER_BYTES)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with suppress(ConnectionError):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
        result = await asyncio.wait_for(outcome, DEADLINE_SECONDS)
        writer.close()
        server.close()
        return result

    return asyncio.run(play())


def test_who_has_the_token_is_heard_even_with_a_long_message():
    message = {"token": TOKEN, "role": "r", "more": "m" * (4 * BUFFER_BYTES)}
    assert told(encode(message)) == message


@pytest.mark.parametrize("said", [b"[]\n", b"{}\n", b"null\n", b'{"token": 1e400}\n', b'{"token": "\\ud800"}\n'])
def test_who_has_not_the_token_is_refused(said):
    assert told(said) == "WireError"


def test_a_long_line_without_the_token_is_not_kept():
    assert told(*[b"x" * BUFFER_BYTES] * 64) == "WireError"
