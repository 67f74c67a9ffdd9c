"""Ranks that no agent speaks for: counted, named, and no gate that needs them is decided."""

import pytest

from harness.judging.metrics import METRICS
from mecefo_runtime.system.events import Event
from tests.harness.analysis.test_attempts import KILLED, RESTART, STEP, Log, restarted
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

NEEDS_EVERY_RANK = ["false_accusations == 0", "diagnosis_recall >= 0", "diverged_units == 0", "unplanned_losses == 0"]


class Watched(Log):
    """As `Log`, with ranks that say that they are there, and others that only greet, or do not even that."""

    def __init__(self, gates=()):
        super().__init__()
        self.events[0].fields["gates"] = list(gates)

    def start(self, number, world_size, observed, greeted=()):
        self.tell("attempt_started", attempt_number=number, world_size=world_size)
        for rank in sorted({*observed, *greeted}):
            pid = 10 * number + rank
            self.tell("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)
        for rank in observed:
            fields = {"world_size": world_size, "framework": "torch"}
            self.events.append(
                Event("rank_started", "rank", self.at, self.at, 10 * number + rank, rank=rank, fields=fields)
            )

    def exit(self, number, rank, code=0):
        ended = {"exited_pid": 10 * number + rank, "exited_rank": rank, "exit": code, "rank_attempt": number}
        self.tell("process_exited", role="rank", **ended)


def of(world_size, observed, greeted=(), gates=(), *, has_fault=True):
    log = Watched(gates)
    log.start(1, world_size, observed, greeted)
    log.steps(1, 1, KILLED - 1)
    if has_fault:
        log.kill(1)
        log.at += RESTART
        log.start(2, world_size, observed, greeted)
        log.steps(2, KILLED, 30)
    else:
        log.events[1].fields["incidents"] = []
    return summarized(log.end())


def caveats_of(found):
    return [caveat for caveat in found["caveats"] if "not observed" in caveat]


@pytest.mark.parametrize("has_fault", [True, False])
def test_ranks_of_which_nothing_is_heard_are_told_in_every_run(has_fault):
    found = of(8, range(6), gates=NEEDS_EVERY_RANK, has_fault=has_fault)
    assert (found["num_ranks"], found["num_observed_ranks"]) == (8, 6)
    (caveat,) = caveats_of(found)
    assert caveat.startswith("2 of 8 ranks are not observed: no agent ran in ranks 6 and 7 (")
    undecided = [gate for gate in found["gates"] if gate["passed"] is None and not gate["builtin"]]
    assert [gate["expression"] for gate in undecided] == NEEDS_EVERY_RANK
    assert found["exit_code"] == 5
    if has_fault:
        assert all("2 of 8" in gate["reason"] for gate in undecided[:2])


def test_ranks_that_were_started_and_took_no_step_are_told_apart():
    (caveat,) = caveats_of(of(4, range(2), greeted=[2]))
    assert caveat.startswith("2 of 4 ranks are not observed: no agent ran in rank 3 (")
    assert "and no step of a training was seen in rank 2" in caveat


@pytest.mark.parametrize(("world_size", "observed"), [(1, range(1)), (2, range(2)), (8, range(8))])
def test_a_job_that_is_observed_as_a_whole_has_no_caveat(world_size, observed):
    found = of(world_size, observed, gates=["false_accusations == 0"])
    assert caveats_of(found) == []
    assert found["num_ranks"] == found["num_observed_ranks"] == world_size
    assert found["verdict"] == "pass", found["reasons"]


def test_a_job_that_goes_on_with_fewer_ranks_is_observed_as_a_whole():
    log = Watched()
    log.start(1, 2, range(2))
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    log.at += RESTART
    log.start(2, 1, range(1))
    log.steps(2, KILLED, 30)
    assert caveats_of(summarized(log.end())) == []


def test_who_ends_before_its_first_step_had_no_time_for_one():
    """Attempt 2 comes to no step at all, and in attempt 3 rank 1 dies of its own error while rank 0 trains."""
    log = Watched()
    log.start(1, 2, range(2))
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    log.at += RESTART
    log.start(2, 2, (), greeted=range(2))
    log.exit(2, 0, 1)
    log.at += RESTART
    log.start(3, 2, range(1), greeted=[1])
    log.exit(3, 1, 1)
    log.steps(3, KILLED, 14)
    log.at += STEP
    log.start(4, 2, range(2))
    log.steps(4, KILLED, 30)
    assert caveats_of(summarized(log.end())) == []


def test_where_ranks_do_not_say_that_they_are_there_nothing_is_known():
    found = summarized(restarted())
    assert (found["num_ranks"], found["num_observed_ranks"], caveats_of(found)) == (None, None, [])


def test_a_count_that_is_too_large_already_fails_whatever_the_other_ranks_would_add():
    log = Watched(["unplanned_losses == 0", "unplanned_losses <= 1", "unplanned_losses >= 1"])
    log.start(1, 3, range(2))
    log.steps(1, 1, KILLED - 1)
    log.exit(1, 1, 1)
    log.at += RESTART
    log.start(2, 3, range(2))
    log.steps(2, KILLED, 30)
    found = summarized(log.end())
    assert len(found["unplanned_losses"]) == 1
    assert [gate["passed"] for gate in found["gates"]][:3] == [False, None, True]


def test_what_needs_every_rank_is_data():
    assert {name for name, metric in METRICS.items() if metric.needs_every_rank} == {
        "diagnosis_precision_ratio",
        "diagnosis_recall_ratio",
        "diagnosis_seconds",
        "diverged_units",
        "false_accusations",
        "first_differing_step",
        "resume_differs",
        "samples_missed",
        "samples_repeated",
        "unplanned_losses",
    }


def test_an_unheard_of_number_of_ranks_is_bounded():
    found = of(2**40, range(2))
    assert found["num_ranks"] == 2**20
