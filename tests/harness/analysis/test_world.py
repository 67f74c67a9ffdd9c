"""Ranks and samples of a step over the attempts of a command, and the speed where a step became another one."""

from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.command.world import num_rows, read_sizes
from harness.judging.summarize import summarize
from harness.report.attempt_words import world_words
from tests.harness.analysis.test_attempts import KILLED, LAST, RESTART, RESUMED, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

ROWS = 8


def digests(num_rows, seed):
    return b64encode(b"".join(f"{seed % 10000:04}{row:04}".encode() for row in range(num_rows))).decode()


class Elastic(Log):
    """A job whose attempts have other numbers of ranks; each rank goes on with its own batch."""

    def start(self, number, world_size):
        self.tell("attempt_started", attempt_number=number, world_size=world_size)
        for rank in range(world_size):
            pid = 10 * number + rank
            self.tell("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)

    def train(self, number, world_size, first, last, *, rows=ROWS, seen=None, is_same=False):
        """`seen`: the ranks that show their batches; with `is_same` all have the same one."""
        for step in range(first, last + 1):
            self.steps(number, step, step)
            for rank in range(world_size) if seen is None else seen:
                batches = [digests(rows, step if is_same else 100 * step + rank)]
                self.tell("step_seen", pid=10 * number + rank, step=step, batches=batches)
                self.events[-1] = replace(self.events[-1], rank=rank)


def resized(*sizes, rows=None, seen=None, is_same=False, shrinks_after=KILLED - 1):
    """One attempt of each size; the fault comes in the first."""
    log = Elastic()
    for number, size in enumerate(sizes, start=1):
        how = {"rows": ROWS if rows is None else rows[number - 1], "seen": seen, "is_same": is_same}
        log.start(number, size)
        if number == 1:
            log.train(number, size, 1, shrinks_after, **how)
            log.kill(1)
        else:
            begin = RESUMED + 20 * (number - 2)
            log.train(number, size, begin, begin + 19, **how)
        log.at += RESTART
    return log


def test_a_job_that_goes_on_with_half_its_ranks_is_half_as_fast():
    log = resized(2, 1)
    found = summarized(log.end())
    assert found["world_size"] == {"before": 2, "during": 1, "after": 1}
    assert found["global_batch_samples"] == {"before": 16, "during": 8, "after": 8}
    assert found["ranks_lost_for_good"] == 1
    assert found["throughput_unit"] == "samples"
    assert found["throughput_per_second"]["before"] == pytest.approx(16 / STEP)
    assert found["throughput_per_second"]["after"] == pytest.approx(8 / STEP)
    assert found["throughput_drop_while_training_ratio"] == pytest.approx(0.5)
    assert found["incidents"][0]["phases_seconds"]["restore"] is None
    assert [one["global_batch_samples"] for one in found["attempt_list"]] == [16, 8]
    words = world_words(summarize(log.events))
    assert "2 -> 1 for good" in words and "16 -> 8" in words


def test_where_the_batch_of_a_step_stays_the_speed_is_that_of_steps():
    """The script divides the same batch among fewer ranks."""
    found = summarized(resized(2, 1, rows=(8, 16)).end())
    assert found["global_batch_samples"] == {"before": 16, "during": 16, "after": 16}
    assert found["throughput_unit"] == "steps"
    assert found["throughput_per_second"]["after"] == pytest.approx(1 / STEP)
    assert found["incidents"][0]["phases_seconds"]["restore"] is not None


@pytest.mark.parametrize("seen", [(), (0,)], ids=["no rank shows its batches", "not all ranks do"])
def test_where_the_batch_is_not_known_no_speed_after_the_fault_is_told(seen):
    found = summarized(resized(3, 2, seen=seen).end())
    assert found["global_batch_samples"]["after"] is None
    assert found["world_size"]["after"] == 2
    assert found["throughput_per_second"]["after"] is None
    assert found["throughput_drop_while_training_ratio"] is None
    assert found["incidents"][0]["phases_seconds"]["restore"] is None
    codes = [one["code"] for one in found["caveat_codes"]]
    assert "steps_may_differ" in codes and "throughput_not_restored" not in codes


def test_the_same_size_needs_no_batches():
    found = summarized(resized(2, 2, seen=()).end())
    assert found["throughput_per_second"]["after"] == pytest.approx(1 / STEP)
    assert "steps_may_differ" not in [one["code"] for one in found["caveat_codes"]]


def test_ranks_that_share_their_batches_count_once():
    """Tensor parallelism: all ranks of a group are called with the same rows."""
    found = summarized(resized(4, 2, is_same=True).end())
    assert found["global_batch_samples"] == {"before": 8, "during": 8, "after": 8}


def test_a_job_that_grew_back_lost_none_for_good_and_one_that_grew_is_told():
    log = resized(2, 1, 2)
    found = summarized(log.end())
    assert found["world_size"] == {"before": 2, "during": 1, "after": 2}
    assert found["ranks_lost_for_good"] == 0
    words = world_words(summarize(log.events))
    assert "2 -> 1 -> 2" in words and "for good" not in words
    grown = summarized(resized(1, 3).end())
    assert grown["world_size"] == {"before": 1, "during": 3, "after": 3}
    assert grown["throughput_per_second"]["after"] == pytest.approx(24 / STEP)


def test_a_job_whose_size_stays_says_nothing_of_it():
    log = Log()
    log.attempt(1)
    log.steps(1, 1, LAST)
    assert world_words(summarize(log.end())) == ""


def test_a_gate_on_a_batch_that_nobody_saw_is_undecided():
    log = resized(2, 1, seen=())
    log.events[0].fields["gates"] = ["global_batch_after_samples >= 16", "ranks_lost_for_good == 0"]
    found = summarized(log.end())
    asked = {gate["expression"]: gate for gate in found["gates"] if not gate["builtin"]}
    assert asked["global_batch_after_samples >= 16"]["passed"] is None
    assert asked["ranks_lost_for_good == 0"]["passed"] is False


@given(st.lists(st.integers(0, 9)))
def test_rows_are_counted_over_all_passes(passes):
    assert num_rows([digests(rows, 1) for rows in passes]) == sum(passes)


@given(
    sizes=st.lists(st.tuples(st.floats(0, 100), st.one_of(st.none(), st.integers(1, 8))), min_size=1),
    at=st.floats(0, 100),
)
def test_sizes_are_those_of_attempts(sizes, at):
    ordered = sorted(sizes, key=lambda one: one[0])
    known = [size for _, size in ordered]
    found = read_sizes(ordered, at)
    assert found.before in known and found.after == known[-1]
    assert found.during is None or found.during in known
    without = read_sizes(ordered, None)
    assert (without.before, without.during, without.after) == (known[0], None, known[-1])
