"""Why no training step may have been seen in a command: codes in the log, and their words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Unseen = Literal["no_agent", "no_step", "nothing_to_do", "compiled", "not_in_log", "other_user"]
"""`no_agent`: no process of the command reported at all; `no_step`: some did, and took no step; `nothing_to_do`: an
optimizer was made and never used; `compiled`: the same, and torch.compile was at work; `not_in_log`: no line matched
the pattern of --step-from; `other_user`: processes of the command run as another user, and no rank reported.
"""

_NO_STEP = "no optimizer step of PyTorch was seen"
_OTHER_LOOPS = (
    "A loop with other steps reports them by calling chaos.agent.step() once a step, or prints them for --step-from"
)
_WORDS: Mapping[str, str] = {
    "no_step": f"{_NO_STEP}. {_OTHER_LOOPS}",
    "no_agent": (
        f"{_NO_STEP}. {_OTHER_LOOPS}. No Python process of the command reported at all: Python's options -I, -E and -S "
        "disable the agent, and so does whatever replaces PYTHONPATH, or another machine or container"
    ),
    "nothing_to_do": (
        f"{_NO_STEP}, though an optimizer was made: a job that resumes from its own checkpoint had nothing left to do. "
        "--reset 'rm -rf ...' removes it before each start; of a command in containers, remove it yourself. "
        f"{_OTHER_LOOPS}"
    ),
    "compiled": (
        f"{_NO_STEP}, though an optimizer was made, and torch.compile compiled functions there: report a hidden step "
        "with chaos.agent.step(), once a step"
    ),
    "other_user": f"{_NO_STEP}, and the command changes to another user, whose processes did not report",
    "not_in_log": "no line of the log matched --step-from",
}


def unseen_words(why: str, user: str | None = None, unreachable: str | None = None) -> str:
    """As a sentence without its full stop: what was looked for, and how a step can be reported.

    `user` is the other user of `other_user`, and `unreachable` a path that it must be able to read and cannot.
    """
    if why == "other_user" and user:
        cure = f": that user cannot reach {unreachable}" if unreachable else ""
        return f"{_NO_STEP}, and processes of the command run as {user}, and none of them reported as a rank{cure}"
    return _WORDS.get(why, _WORDS["no_step"])
