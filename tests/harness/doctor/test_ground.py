"""What a run needs of the kernel, and how too little of it is told."""

import pytest

from chaos.errors import EnvironmentFailure
from chaos.host import inherited
from harness.doctor.ground import needs_of
from harness.node.node import ThisMachine
from harness.run.execute import require_room
from mecefo_runtime.job.config import JobConfig

pytestmark = pytest.mark.unit


def job_of(nodes, gpus):
    return JobConfig(nodes=nodes, gpus_per_node=gpus, data_parallel=nodes * gpus, pipeline=1)


def needs(nodes, gpus, **others):
    return needs_of(job_of(nodes, gpus), **{"has_baseline": False, "has_networks": False, **others})


@pytest.mark.parametrize(
    # The most that a process was seen to have; see `ground.py`.
    ("nodes", "gpus", "num_seen"),
    [(2, 1, 19), (2, 2, 26), (2, 4, 33), (4, 2, 38), (4, 4, 50), (8, 4, 95)],
)
def test_more_than_was_ever_seen_and_not_twice_as_much(nodes, gpus, num_seen):
    assert num_seen + 5 <= needs(nodes, gpus).open_files <= 2 * num_seen


def test_what_networks_and_a_baseline_take():
    plain = needs(4, 2)
    assert needs(4, 2, has_networks=True).open_files > plain.open_files
    assert needs(4, 2, has_baseline=True).open_files > plain.open_files
    assert needs(4, 2, has_baseline=True).processes > plain.processes


def test_an_ordinary_limit_is_enough_for_many_ranks():
    assert needs(16, 8, has_baseline=True).open_files <= 1024


def test_too_few_descriptors_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(inherited, "allow_open_files", lambda wanted: 24)
    wanted = needs(2, 1)
    with pytest.raises(EnvironmentFailure) as refused:
        require_room(job_of(2, 1), wanted, ThisMachine())
    assert f"ulimit -n {wanted.open_files}" in str(refused.value) and "limit is 24" in str(refused.value)


def test_too_few_processes_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(inherited, "processes_refused", lambda wanted: (3, 20))
    wanted = needs(2, 1)
    with pytest.raises(EnvironmentFailure) as refused:
        require_room(job_of(2, 1), wanted, ThisMachine())
    assert f"ulimit -u {17 + wanted.processes}" in str(refused.value) and "3 more, of 20" in str(refused.value)
