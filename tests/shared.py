"""What is made once for all workers of a test run, whichever of them comes first."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` that `make` has filled; who comes while it is made waits."""
    base = factory.getbasetemp()
    # Workers of xdist have folders of their own, below a common one.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, is_made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            is_made.touch()
    return folder
