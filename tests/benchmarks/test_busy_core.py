import os
import subprocess
import sys
import textwrap

import psutil
import pytest

from benchmarks._busy_core import BusyCore

pytestmark = pytest.mark.unit

CORE = min(os.sched_getaffinity(0))


def test_it_is_pinned_works_and_is_gone_afterwards():
    # One that is just being executed has no command line yet, and other tests of this process may have left some.
    before = set(psutil.Process().children())
    with BusyCore(CORE) as busy:
        (child,) = set(psutil.Process().children()) - before
        while sum(child.cpu_times()[:2]) < 0.2:
            assert child.is_running()
        assert child.cpu_affinity() == [CORE]
    assert not psutil.pid_exists(child.pid)
    assert 0.0 < busy.cpu_ratio <= 1.0


def test_it_is_gone_when_the_benchmark_fails():
    # Other tests of this process may have left some.
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError), BusyCore(CORE):
        children = set(psutil.Process().children()) - before
        raise RuntimeError
    assert children
    assert not any(child.is_running() for child in children)


def test_it_does_not_outlive_a_benchmark_that_is_killed():
    script = textwrap.dedent(
        f"""
        import os, psutil, signal
        from benchmarks._busy_core import BusyCore
        BusyCore({CORE}).__enter__()
        (child,) = psutil.Process().children()
        while sum(child.cpu_times()[:2]) < 0.1:
            continue
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert killed.returncode < 0, killed.stderr
    try:
        psutil.Process(int(killed.stdout)).wait(timeout=120)
    except psutil.NoSuchProcess:
        return
