"""Becomes another program, which the kernel kills when its parent dies.

`-m benchmarks.peers.bound PARENT_PID COMMAND...`. So a benchmark that is killed leaves nothing behind, not even
programs that are not ours.
"""

from __future__ import annotations

import os
import sys

from mecefo_runtime.system.process import die_with_parent


def main() -> None:
    """Entry point."""
    die_with_parent(int(sys.argv[1]))
    # The bond outlives an exec (prctl(2), PR_SET_PDEATHSIG).
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
