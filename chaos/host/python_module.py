"""Starts Python modules of this installation as processes, wherever the user is and whatever else is on Python's path.

`python -m` puts the current folder first on the path: started in another project's checkout, it would find that
project's `harness`, `json.py` or `torch.py`. Started by this file with `-P` (Python's command line documentation), a
module finds the packages that this process runs from.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

PACKAGES = ("mecefo_runtime", "chaos", "harness")
# Before it, whatever a user's sitecustomize prints; after it, only what the module itself writes.
BEGIN = b"\x1e\n"


def command(module: str, *arguments: str) -> list[str]:
    """The words that run `module` of this installation as `python -m` would, with `arguments`."""
    return [sys.executable, "-P", __file__, module, *arguments]


def begin_output() -> None:
    """In the module: what is written to standard output from here on is for whoever started it."""
    sys.stdout.write(BEGIN.decode())
    sys.stdout.flush()


def is_begin(line: bytes) -> bool:
    """Whether the module's own output begins after `line`."""
    return line.endswith(BEGIN)


async def has_begun(output: asyncio.StreamReader) -> bool:
    """Wait for the module's own output; False if it ended before."""
    while line := await output.readline():
        if is_begin(line):
            return True
    return False


def import_own_packages() -> None:
    """Import the packages from where this file is, so that no others of their names are taken later."""
    root = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, root)
    try:
        for package in PACKAGES:
            importlib.import_module(package)
    finally:
        sys.path.remove(root)


def main() -> None:
    """`python -P python_module.py MODULE [ARGUMENT]...`."""
    import_own_packages()
    module = sys.argv[1]
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
