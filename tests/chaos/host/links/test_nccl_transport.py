"""Which way NCCL takes: read from lines that real versions of it wrote, and what is refused for it."""

from __future__ import annotations

import pytest

from chaos.errors import InjectionError
from chaos.host.links.nccl_transport import LOG_NAME, Route, read_routes, refuse_what_no_rule_touches, routes

pytestmark = pytest.mark.unit

# As in the issues of NVIDIA/nccl and NVIDIA/nccl-tests (1189, 1259, 1609, 939; 166, 252).
WAYS = {
    "H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM": (3, 2, "P2P/CUMEM"),
    "devcontainer-gpu0005:2966865:2966938 [7] NCCL INFO Channel 14/0 : 7[7] -> 6[6] via P2P/direct pointer": (
        *(7, 6),
        "P2P/direct pointer",
    ),
    "tj5-sc-ai-h800r-dev01:534:1763 [3] NCCL INFO Channel 00 : 3[7] -> 2[6] via SHM/direct/direct": (
        *(3, 2),
        "SHM/direct/direct",
    ),
    "tesla-105:1480:2169 [2] NCCL INFO Channel 00 : 2[af000] -> 1[1a000] via direct shared memory": (
        *(2, 1),
        "direct shared memory",
    ),
    "tesla-105:1481:2165 [3] NCCL INFO Channel 00 : 3[b1000] -> 4[18000] [send] via NET/Socket/0": (
        *(3, 4),
        "NET/Socket/0",
    ),
    "node01:2771:2801 [0] NCCL INFO Ring 00 : 1 -> 0 [receive] via NET/Socket/0": (1, 0, "NET/Socket/0"),
    "kolyoz1:27255:27906 [0] NCCL INFO Channel 04/0 : 4[0] -> 0[0] [receive] via NET/IBext_v8/0/GDRDMA": (
        *(4, 0),
        "NET/IBext_v8/0/GDRDMA",
    ),
}
OTHER_LINES = """\
nccl-tests-worker-1:1960519:1960630 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels
node01:2771:2801 [0] NCCL INFO NET/Socket: Using 1 threads and 1 sockets per thread
node01:2771:2801 [0] NCCL INFO Channel 00 :    0   1
gpu0:12:13 [0] NCCL INFO Connected all rings
gpu0:12:13 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
gpu0:12:13 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 'peer access is not supported'
NCCL version 2.20.5+cuda12.4
"""


def init(rank: int, communicator: str, thread: int, device: int = 0) -> str:
    return (
        f"nccl-tests-worker-0:518:{thread} [0] NCCL INFO ncclCommInitRank comm 0x562934d19e90 rank {rank} nranks 2 "
        f"cudaDev 0 nvmlDev {device} busId 8000 commId {communicator} - Init COMPLETE\n"
    )


def channel(thread: int, way: str, source: int = 0, destination: int = 1) -> str:
    """A route from the first rank to the second of a communicator, and the devices that they are on."""
    return f"nccl-tests-worker-0:518:{thread} [0] NCCL INFO Channel 00/0 : 0[{source}] -> 1[{destination}] {way}\n"


@pytest.mark.parametrize(("line", "route"), WAYS.items())
def test_a_route_is_read_as_versions_from_then_to_now_write_it(line, route):
    assert routes({route[0]: f"{OTHER_LINES}{line}\n"}) == {Route(*route)}


def test_lines_that_tell_no_route_are_passed_over():
    assert routes({0: OTHER_LINES}) == frozenset()


@pytest.mark.parametrize(
    ("way", "is_through_sockets", "meaning"),
    [
        ("P2P/CUMEM/read", False, "NVLink"),
        ("SHM/direct/direct", False, "shared memory"),
        ("direct shared memory", False, "shared memory"),
        ("NET/Socket/0", True, "past the kernel"),
        ("NET/Socket/1/Shared", True, "past the kernel"),
        ("NET/SocketLike/0", False, "past the kernel"),
        ("NET/IB/0/GDRDMA", False, "past the kernel"),
        ("NET/AWS Libfabric/0", False, "past the kernel"),
        ("COLLNET/SHARP/0", False, "a way of its own"),
    ],
)
def test_only_what_goes_through_sockets_can_be_cut_by_rules(way, is_through_sockets, meaning):
    route = Route(0, 1, way)
    assert route.is_through_sockets is is_through_sockets
    assert is_through_sockets or meaning in route.meaning


def test_a_communicators_numbers_are_the_jobs_ranks_that_made_it():
    logs = {
        2: init(0, "0xaa", 7) + channel(7, "via P2P/CUMEM") + init(1, "0xbb", 8) + channel(8, "via SHM/direct/direct"),
        3: init(1, "0xaa", 5) + channel(5, "via P2P/CUMEM"),
        0: init(0, "0xbb", 5),
    }
    assert routes(logs) == {Route(2, 3, "P2P/CUMEM"), Route(0, 2, "SHM/direct/direct")}


def test_what_is_connected_later_by_another_thread_is_known_by_its_devices():
    def logs(first: int, second: int) -> dict[int, str]:
        told = channel(99, "[send] via NET/Socket/0", 4, first) + channel(99, "via P2P/CUMEM", 4, second)
        return {
            0: init(0, "0xaa", 7, 4) + init(0, "0xbb", 7, 4) + told,
            2: init(1, "0xaa", 7, 5),
            3: init(1, "0xbb", 7, 6),
        }

    assert routes(logs(5, 6)) == {Route(0, 2, "NET/Socket/0"), Route(0, 3, "P2P/CUMEM")}
    # What no device tells from each other counts for each: rather refused than cut in name only.
    both = {Route(0, rank, way) for rank in (2, 3) for way in ("NET/Socket/0", "P2P/CUMEM")}
    assert routes(logs(8, 9)) == both


def test_a_route_to_who_was_started_again_since_is_over():
    assert routes({2: init(0, "0xaa", 7) + channel(7, "via P2P/CUMEM"), 3: ""}) == frozenset()


def test_links_that_nccl_crosses_without_the_network_are_refused_with_what_would_help():
    known = [Route(1, 0, "P2P/CUMEM"), Route(0, 2, "NET/Socket/0"), Route(2, 3, "NET/IB/0/GDRDMA")]
    for link in [(0, 2), (1, 2), (0, "coordinator")]:
        refuse_what_no_rule_touches([link], known)
    with pytest.raises(InjectionError, match=r"link 0-1 by P2P/CUMEM, which is NVLink or PCIe:.*NCCL_P2P_DISABLE=1"):
        refuse_what_no_rule_touches([(0, 1), (0, 2)], known)
    with pytest.raises(InjectionError, match=r"link 0-1 .*and 1 more links like it.*NCCL_NET=Socket"):
        refuse_what_no_rule_touches([(2, 3), (0, 1)], known)


def test_logs_are_read_where_there_are_some(tmp_path):
    assert read_routes(tmp_path) == read_routes(tmp_path / "none") == frozenset()
    (tmp_path / LOG_NAME.format(rank=3)).write_bytes(b"\xff\n" + next(iter(WAYS)).encode())
    (tmp_path / "nccl-notes.log").write_text("of somebody else")
    assert read_routes(tmp_path) == {Route(3, 2, "P2P/CUMEM")}
    (tmp_path / LOG_NAME.format(rank=1)).mkdir()
    with pytest.raises(InjectionError, match=r"nccl-1\.log"):
        read_routes(tmp_path)
