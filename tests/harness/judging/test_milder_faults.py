"""What a run says of a fault that took effect, and stands for more than it did."""

import pytest

from tests.harness.judging.test_undecided import Log, summarized

pytestmark = pytest.mark.unit


def caveats(*, phase="forward", runtime="command", verified=True, **evidence):
    log = Log(("kill-process", "rank=0"), runtime=runtime)
    log.attempt(1, 1, 20)
    log.inject(step=20, phase=phase, is_loss=True, ranks=[0], evidence={"summary": "gone", **evidence})
    if not verified:
        log.events.pop()
    log.attempt(2, 11, 60)
    log.leave(2)
    return summarized(log.end())["caveats"]


MIDDLE = (
    "Incident 0 (kill-process) came before the first byte of the save of step 20 was written: a fault in the middle of "
    "the write is not covered by this run."
)
RANKS_ONLY = "Incident 0 (kill-process) reached the ranks of the node only"


def test_a_fault_before_a_save_says_where_in_the_save_it_came():
    assert MIDDLE in caveats(phase="checkpoint")
    assert MIDDLE not in caveats() and MIDDLE not in caveats(phase="checkpoint", verified=False)


def test_our_own_runtime_has_saves_of_its_own():
    assert MIDDLE not in caveats(phase="checkpoint", runtime="mecefo")


def test_a_fault_of_a_node_that_left_a_launcher_says_so():
    assert any(said.startswith(RANKS_ONLY) for said in caveats(ranks_only=True))
    assert not any(said.startswith(RANKS_ONLY) for said in caveats())
