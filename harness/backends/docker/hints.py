"""Hints for a command that failed in a container: what exists only on the user's machine."""

from __future__ import annotations

import re
from pathlib import Path

from harness.backends.command.start import NOT_FOUND

_TAIL_BYTES = 1 << 16
_BUILD = "build one on it that has, and name it with --image (docs/how-to/containers.md)"
# What programs write, and what is to be said of it; the first that fits.
_HINTS = (
    (r"ModuleNotFoundError: No module named (\S+)", f"where the image has no module {{0}}, {_BUILD}"),
    (
        r"Read-only file system: (\S+)",
        "a container may write only to {folder} and /tmp: write {0} there",
    ),
    (
        r"(?:FileNotFoundError|No such file or directory): (['\"]/\S+)",
        "a container sees only {folder} of this machine: put what it needs there",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|Network is unreachable",
        "a container reaches only the other nodes: put what it would download into {folder}, or in the image",
    ),
)


def hint(log: Path, folder: Path, code: int) -> str | None:
    """What may be done, by what a command wrote into `log` that ran in `folder` and ended with `code`.

    None: nothing is known of it.
    """
    if code == NOT_FOUND:
        return f"where its image has no such program, {_BUILD}"
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    for sign, words in _HINTS:
        if match := re.search(sign, text):
            return words.format(*match.groups(), folder=folder)
    return None
