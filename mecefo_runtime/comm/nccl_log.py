"""Settings that make NCCL log the transport it uses to each peer.

Imports nothing of ours: also used for external jobs.
"""

from __future__ import annotations


def nccl_log_settings(path: str) -> dict[str, str]:
    """The variables with which NCCL writes that into `path`, if they are set before it is first used in a process."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH", "NCCL_DEBUG_FILE": path}
