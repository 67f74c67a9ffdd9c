"""Peers are tried only while nothing goes on, and named only when they cannot be reached, or their link stalls."""

from __future__ import annotations

import queue
import time

import pytest

from mecefo_runtime.comm.link_watch import STALLED_AFTER, LinkWatch
from mecefo_runtime.comm.probe import ProbeServer
from tests.ports import reserved_port

pytestmark = pytest.mark.unit

HOST = "127.0.0.1"
PATIENCE_SECONDS = 0.08
LONG_SECONDS = 120.0


@pytest.fixture
def nobody():
    """An address at which nobody answers."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


def test_who_cannot_be_reached_is_named_when_nothing_goes_on(nobody):
    server, told = ProbeServer("127.0.0.1"), queue.SimpleQueue()
    watch = LinkWatch(PATIENCE_SECONDS, lambda: "stuck", lambda: {1: server.address, 2: nobody}, told.put, HOST)
    watch.start()
    try:
        assert told.get(timeout=LONG_SECONDS) == [2]
        # And again, for as long as it lasts: what was said may have been lost.
        assert told.get(timeout=LONG_SECONDS) == [2]
    finally:
        watch.close()
        server.close()


def test_nobody_is_tried_while_anything_goes_on(nobody):
    steps, tried = iter(range(10**9)), queue.SimpleQueue()
    many = queue.SimpleQueue()

    def progress() -> int:
        step = next(steps)
        if step == 12:
            many.put(step)
        return step

    def peers() -> dict[int, str]:
        tried.put("tried")
        return {2: nobody}

    watch = LinkWatch(PATIENCE_SECONDS, progress, peers, tried.put, HOST)
    watch.start()
    try:
        # Three times its patience.
        many.get(timeout=LONG_SECONDS)
        assert tried.empty()
    finally:
        watch.close()


def test_who_can_be_reached_is_not_named():
    server, looks, told = ProbeServer("127.0.0.1"), queue.SimpleQueue(), queue.SimpleQueue()

    def peers() -> dict[int, str]:
        looks.put("looked")
        return {1: server.address}

    watch = LinkWatch(PATIENCE_SECONDS, lambda: "stuck", peers, told.put, HOST)
    watch.start()
    try:
        for _ in range(3):
            looks.get(timeout=LONG_SECONDS)
        assert told.empty()
    finally:
        watch.close()
        server.close()


def test_who_can_be_reached_over_a_link_that_stalls_is_named_when_nothing_has_gone_on_for_long(monkeypatch):
    server, told = ProbeServer(HOST), queue.SimpleQueue()
    asked = []

    def find_stalled(peers, own_host, seconds):
        asked.append((list(peers), own_host, seconds))
        return [1]

    monkeypatch.setattr("mecefo_runtime.comm.link_watch.find_stalled", find_stalled)
    watch = LinkWatch(PATIENCE_SECONDS, lambda: "stuck", lambda: {1: server.address}, told.put, "127.0.0.9")
    began_seconds = time.monotonic()
    watch.start()
    try:
        assert told.get(timeout=LONG_SECONDS) == [1]
        assert time.monotonic() - began_seconds >= STALLED_AFTER * PATIENCE_SECONDS
        assert ([1], "127.0.0.9", PATIENCE_SECONDS) in asked  # a closed watch's last look may still be under way
    finally:
        watch.close()
        server.close()


def test_links_that_stall_are_not_asked_for_while_anything_goes_on(monkeypatch):
    monkeypatch.setattr("mecefo_runtime.comm.link_watch.find_stalled", lambda *_: [1])
    steps, many, told = iter(range(10**9)), queue.SimpleQueue(), queue.SimpleQueue()

    def progress() -> int:
        step = next(steps)
        if step == 10 * STALLED_AFTER:
            many.put(step)
        return step

    watch = LinkWatch(PATIENCE_SECONDS, progress, dict, told.put, HOST)
    watch.start()
    try:
        many.get(timeout=LONG_SECONDS)
        assert watch.find_stalled() == []
        assert told.empty()
    finally:
        watch.close()
