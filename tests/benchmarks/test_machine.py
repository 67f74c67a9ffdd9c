import os
import platform
import subprocess
import sys
import time

import pytest

from benchmarks._machine import OtherLoad, confined_to, describe_machine, read_cpu_model

pytestmark = pytest.mark.unit


def test_the_cpu_model_is_the_kernels(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 7\nmodel name\t: Fast CPU: v2\n\nmodel name\t: Other\n")
    assert read_cpu_model(cpuinfo) == "Fast CPU: v2"


def test_without_a_name_it_is_the_architecture(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert read_cpu_model(tmp_path / "cpuinfo") == read_cpu_model(tmp_path / "nowhere") == platform.machine()


def test_confinement_ends():
    before = os.sched_getaffinity(0)
    with confined_to(1) as cores:
        assert os.sched_getaffinity(0) == set(cores) == {min(before)}
        machine = describe_machine()
    assert os.sched_getaffinity(0) == before
    assert machine.num_cores_used == 1
    assert machine.num_cores == os.cpu_count()


def test_a_confined_machine_says_so():
    machine = describe_machine()
    assert (", 1 of them used" in str(machine)) is False
    with confined_to(1):
        assert (", 1 of them used" in str(describe_machine())) is (machine.num_cores > 1)


def test_own_processes_are_not_others_and_others_are():
    work = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: continue"]
    with confined_to(1) as cores:
        with OtherLoad(cores) as with_waited:
            subprocess.run(work, check=True)
        # Not waited for within the measurement, it is as external as any other process.
        process = subprocess.Popen(work)
        began = time.process_time()
        with OtherLoad(cores) as with_foreign:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.wait()
    assert time.process_time() - began < 0.2
    assert with_foreign.num_cores > 0.7  # the core was never idle, and none of it was ours
    assert with_waited.num_cores < with_foreign.num_cores
