"""How a command ended, and why no step of it may have been seen."""

from __future__ import annotations

from collections.abc import Mapping

NO_STEP = (
    "no optimizer step of PyTorch was seen. A loop with other steps reports them by calling "
    "chaos.agent.step() once a step"
)
NOTHING_TO_DO = (
    "no optimizer step of PyTorch was seen, though an optimizer was made: a job that resumes from its own checkpoint "
    "had nothing left to do. --reset 'rm -rf ...' resets it before each start. A loop that takes "
    "its steps otherwise reports them by calling chaos.agent.step() once a step"
)
NO_AGENT = (
    f"{NO_STEP}. No process of the command reported at all: Python's options -I, -E and -S disable the agent, and so "
    "does whatever replaces PYTHONPATH, or another machine or container"
)
COMPILED = (
    "no optimizer step of PyTorch was seen, though an optimizer was made, and torch.compile compiled functions there: "
    "report a hidden step with chaos.agent.step(), once a step"
)
NOT_IN_LOG = "no line of the log matched --step-from"


def deciding_end(codes: Mapping[int, int]) -> tuple[int, int]:
    """(node, exit code) of the end that says how the job ended; `codes` are by node, in the order of the ends.

    The first that failed by itself. Where one was only killed and all others end well, they went on without it.
    """
    ends = codes.items()
    failed = [(node, code) for node, code in ends if code > 0]
    well = [(node, code) for node, code in ends if code == 0]
    return (*failed, *well, *ends)[0]
