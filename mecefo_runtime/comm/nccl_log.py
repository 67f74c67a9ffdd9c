"""What makes NCCL say which way it takes to each peer. Needs nothing: also for processes that are not ours."""

from __future__ import annotations


def nccl_log_settings(path: str) -> dict[str, str]:
    """The variables with which NCCL writes that into `path`, if they are set before it is first used in a process."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH", "NCCL_DEBUG_FILE": path}
