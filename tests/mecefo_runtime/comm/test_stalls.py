"""What the kernel tells of connections that wait: how it is read, and that it is so where a link carries nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.host.links.firewall import environment, find_tool
from harness.network.machine import why_no_networks
from mecefo_runtime.comm.stalls import NUM_ATTEMPTS_IN_VAIN, Waiting, find_stalled, is_stalled

REPOSITORY = Path(__file__).resolve().parents[3]
FIRST_TIMEOUT_SECONDS = 0.2
OWN_HOST = "127.0.0.1"
BACKOFF = 4

# At the sender, where the kernel counts what it drops as not sent; on the way; and of what comes back.
WAYS = [("-I", "OUTPUT", "-d", "127.0.0.2"), ("-I", "INPUT", "-d", "127.0.0.2"), ("-I", "INPUT", "-s", "127.0.0.2")]

# 127.0.0.2 is cut off from 127.0.0.1, on which it waits; 127.0.0.3 is not.
STALLING = """
import json, socket, subprocess, time
from chaos.host.links.firewall import find_tool
from mecefo_runtime.comm.stalls import Waiting, find_stalled

subprocess.run([find_tool("ip"), "link", "set", "lo", "up"], check=True)
connected = []
for host in ("127.0.0.2", "127.0.0.3"):
    listener = socket.create_server((host, 0))
    sender = socket.create_connection(listener.getsockname(), source_address=("127.0.0.1", 0))
    connected.append((listener, sender, listener.accept()))
subprocess.run([find_tool("iptables"), *RULE, "-j", "DROP"], check=True)
sender = connected[0][1]
peers = {1: "127.0.0.2:1", 2: "127.0.0.3:1", 3: "127.0.0.2:2"}
# Before anything is lost: however late this process is from then on, nothing waits for longer than since.
began = time.monotonic()
sender.sendall(b"lost")
connected[1][1].sendall(b"not lost")
while not (stalled := find_stalled(peers, "127.0.0.1", 1.0)):
    time.sleep(0.01)
waiting, seconds = Waiting.of(sender), time.monotonic() - began
print(json.dumps([stalled, find_stalled(peers, "127.0.0.1", 1000.0), waiting.seconds, seconds]))
"""


def info(*, num_sent: int = 1, backoff: int = 0, probes: int = 0, last_sent_seconds: float = 0.0) -> bytes:
    """What the kernel tells of a connection whose round trips take next to no time."""
    timeout_seconds = FIRST_TIMEOUT_SECONDS * (2**backoff if num_sent else 1)
    words = [0] * 13
    words[0], words[4], words[9] = round(timeout_seconds * 1e6), num_sent, round(last_sent_seconds * 1e3)
    return bytes((1, 4, backoff, probes, backoff, 7, 0, 0)) + b"".join(w.to_bytes(4, sys.byteorder) for w in words)


@pytest.mark.unit
def test_who_has_not_had_to_send_anything_again_does_not_wait():
    assert Waiting.parse(info(last_sent_seconds=100.0)) is None
    # The peer takes nothing more, and says so each time that it is asked.
    assert Waiting.parse(info(num_sent=0, backoff=5, last_sent_seconds=100.0)) is None


@pytest.mark.unit
@pytest.mark.parametrize(("num_attempts", "until_last"), [(1, 0.2), (2, 0.6), (3, 1.4), (4, 3.0)])
def test_how_long_a_connection_waits_is_all_its_time_outs_and_what_has_gone_by_since(num_attempts, until_last):
    sent = info(backoff=num_attempts, last_sent_seconds=0.1)
    unsent = info(num_sent=0, backoff=num_attempts, probes=num_attempts, last_sent_seconds=0.1)
    for waiting in (Waiting.parse(sent), Waiting.parse(unsent)):
        assert waiting is not None
        assert waiting.num_attempts == num_attempts
        assert waiting.seconds == pytest.approx(until_last + 0.1)


@pytest.mark.unit
def test_a_packet_or_two_that_were_lost_are_no_stall_however_slow_the_link_is():
    assert not is_stalled(None, 0.0)
    assert not is_stalled(Waiting(60.0, NUM_ATTEMPTS_IN_VAIN - 1), 2.0)
    assert not is_stalled(Waiting(1.9, NUM_ATTEMPTS_IN_VAIN), 2.0)
    assert is_stalled(Waiting(2.0, NUM_ATTEMPTS_IN_VAIN), 2.0)


@pytest.mark.unit
def test_a_peer_that_does_not_read_acknowledges_all_the_same():
    with (
        socket.create_server((OWN_HOST, 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
        listener.accept()[0],
    ):
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        # The peer has been asked so often whether it takes more.
        while sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[BACKOFF] < NUM_ATTEMPTS_IN_VAIN:
            time.sleep(0.01)
        assert find_stalled({1: f"{OWN_HOST}:1"}, "127.0.0.2", 0.0) == []


@pytest.mark.integration
@pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}")
@pytest.mark.parametrize("rule", WAYS)
def test_where_a_link_carries_nothing_a_connection_waits_for_as_long_as_it_does(rule):
    unshare = [find_tool("unshare"), "--user", "--map-root-user", "--net"]
    told = subprocess.run(
        [*unshare, sys.executable, "-c", f"RULE = {rule}\n{STALLING}"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
        timeout=300.0,
        check=True,
    )
    stalled, stalled_for_long, waiting_seconds, seconds = json.loads(told.stdout)
    assert stalled == [1, 3]
    assert stalled_for_long == []
    # The kernel's clock is a little ahead or behind: its ticks are some milliseconds.
    assert 1.0 <= waiting_seconds <= seconds + 0.1
    assert waiting_seconds >= seconds / 2
