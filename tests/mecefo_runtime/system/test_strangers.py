"""The first message of who connects, and JSON that anybody may have written."""

import json
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.system import strangers
from mecefo_runtime.system.strangers import StrangerThreads
from mecefo_runtime.system.strict_json import MAX_DEPTH, loads, whole
from mecefo_runtime.system.wire import MAX_HELLO_BYTES, Connection, WireError, encode

pytestmark = pytest.mark.unit


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    # It holds the socket open until it is collected.
    connection._reader.close()
    theirs.close()


def test_the_first_message_and_what_follows_it(pair):
    connection, theirs = pair
    theirs.sendall(encode({"token": "t", "long": "x" * 1000}) + encode({"type": "next"}) + encode({"type": "last"}))
    assert connection.receive_hello(60.0)["token"] == "t"
    connection.set_timeout(60.0)
    assert [connection.receive()["type"] for _ in range(2)] == ["next", "last"]


def test_a_byte_at_a_time_it_has_one_deadline(pair):
    connection, theirs = pair
    is_over = threading.Event()

    def dribble():
        while not is_over.wait(0.02):
            theirs.send(b"x")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(WireError):
            connection.receive_hello(0.3)
    finally:
        is_over.set()
        thread.join()


def test_it_is_short(pair):
    connection, theirs = pair
    theirs.sendall(b"x" * (MAX_HELLO_BYTES + 8192))
    with pytest.raises(WireError, match="who it is"):
        connection.receive_hello(60.0)


def test_of_too_many_threads_the_oldest_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(strangers, "MAX_STRANGERS", 1)
    known = StrangerThreads()
    first, first_end = socket.socketpair()
    second, second_end = socket.socketpair()
    with first, first_end, second, second_end, known.waiting(first), known.waiting(second):
        assert first_end.recv(1) == b""
        second.sendall(b"x")
        assert second_end.recv(1) == b"x"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_what_json_can_say_is_read_as_it_is(value):
    assert loads(json.dumps(value)) == loads(json.dumps(value).encode()) == value


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_what_is_nested_too_deep_is_refused(opening):
    closing = "]" if opening == "[" else "}"
    for depth, is_read in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (900, False), (10**5, False)):
        text = opening * depth + "0" * (opening != "[") + closing * depth
        if is_read:
            assert loads(text) is not None
        else:
            with pytest.raises(ValueError, match="too deep"):
                loads(text)
    assert loads(json.dumps([[1]] * 1000)) == [[1]] * 1000, "many are not deep"
    assert loads(json.dumps("[" * 1000)) == "[" * 1000


@pytest.mark.parametrize("text", ["1" * 5000, "{", "", "\x00", b"\xff"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        loads(text)


@pytest.mark.parametrize("value", [True, 1.0, float("inf"), "1", None, 1 << 64])
def test_what_is_no_whole_number(value):
    with pytest.raises(ValueError):
        whole(value)
    assert whole(-3) == -3
