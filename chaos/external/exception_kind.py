"""Decides from an exception whose failure it reports: no other place does.

Nothing but the standard library: a rank imports it.
"""

from __future__ import annotations

import re

OWN, TIMEOUT, PEER = "own", "collective_timeout", "peer_lost"
"""A failure of the rank itself; a collective that did not come to its end in time; one of which a peer was gone."""

# torch.distributed's own exceptions (2.11-2.13): of the store, of connections, of NCCL.
_STORE, _NETWORK, _BACKEND = "DistStoreError", "DistNetworkError", "DistBackendError"
# Whose message says what a collective did: gloo and NCCL name their sources, torch its groups and stores.
_OF_A_COLLECTIVE = re.compile(r"gloo|NCCL|nccl|ProcessGroup|c10d|TCPStore|monitoredBarrier|recvValue|sendBytes")
_TIMED_OUT = re.compile(
    r"[Tt]imed out|[Tt]ime-?out|[Ww]atchdog caught|wait timeout after|failed to pass monitoredBarrier"
)
_PEER_GONE = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset)(?: by (?:remote )?peer)?|[Bb]roken pipe|[Cc]onnection refused"
    r"|remote process exited|ncclRemoteError|connectFullMesh failed|failed to (?:recv|send), got"
    r"|[Cc]onnect(?:ion)? (?:failed|error)|communicator was aborted"
)


def kind_of(exception: str, message: str) -> str:
    """OWN, TIMEOUT or PEER, by the exception's dotted name and its message.

    Python's own ConnectionError and TimeoutError are OWN: a script has other connections than those to its peers.
    """
    name = exception.rpartition(".")[2]
    if name not in (_STORE, _NETWORK, _BACKEND) and not _OF_A_COLLECTIVE.search(message):
        return OWN
    if _TIMED_OUT.search(message):
        return TIMEOUT
    if name == _NETWORK or _PEER_GONE.search(message):
        return PEER
    return OWN
