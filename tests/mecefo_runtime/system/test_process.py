"""Work that is done in a process of its own."""

from __future__ import annotations

import os

import pytest

from mecefo_runtime.system.process import run_apart

pytestmark = pytest.mark.unit


def test_the_answer_comes_from_another_process_and_nothing_stays_of_it():
    kept = []

    def compute() -> str:
        kept.append("x")
        return f"{os.getpid()} {'long ' * 100_000}"

    pid, _, rest = run_apart(compute).partition(" ")
    assert int(pid) != os.getpid() and len(rest) == 500_000
    assert not kept
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid), os.WNOHANG)


def test_its_failure_is_ours():
    with pytest.raises(RuntimeError, match="exit code 1"):
        run_apart(lambda: str(1 / 0))
