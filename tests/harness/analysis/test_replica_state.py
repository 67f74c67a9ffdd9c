"""Replicas that no longer agree: found by what was equal before the fault."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.command.replica_state import Difference, compare_replicas
from mecefo_runtime.system.command_records import StateChecksums
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.records import parse
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

INJECTED = 5.5


def look(rank, step, sums, tensors=("weight", "bias")):
    """What a rank told at second `step`; sums are small numbers."""
    fields = {"sums": "".join(f"{one:08x}" for one in sums), "tensors": tensors}
    return StateChecksums.of(
        Event("state_checksums", "rank", step, float(step), 100 + rank, rank=rank, step=step, fields=fields)
    )


def compared(held, *, struck=(1,), tensors=("weight", "bias")):
    """`held`: by step, by rank, the sums."""
    records = [look(rank, step, sums, tensors) for step, ranks in held.items() for rank, sums in ranks.items()]
    return compare_replicas(records, INJECTED, struck)


def same(steps, ranks=(0, 1), sums=(7, 8)):
    return {step: dict.fromkeys(ranks, (sums[0] + step, sums[1])) for step in steps}


def test_what_agrees_to_the_end_has_no_difference():
    found = compared(same(range(1, 10)))
    assert (found.differences, found.last_step, found.unknown) == ((), 9, None)


def test_one_tensor_of_one_rank_is_named_from_when_it_was_seen():
    held = same(range(1, 10))
    for step in range(7, 10):
        held[step] = {0: (1, 8), 1: (2, 8)}
    assert compared(held).lasting == (Difference("weight", (1,), 7),)
    assert compared(held, struck=(0,)).lasting == (Difference("weight", (0,), 7),)


def test_most_ranks_are_right():
    held = same(range(1, 9), ranks=range(4))
    held[8] = {**held[8], 0: (99, 8)}
    assert compared(held, struck=(1,)).lasting == (Difference("weight", (0,), 8),)


def test_what_agrees_again_is_no_lasting_difference():
    held = same(range(1, 10))
    held[7] = {0: (1, 8), 1: (2, 8)}
    found = compared(held)
    assert (found.lasting, found.differences) == ((), (Difference("weight", (1,), 7, 8),))


def test_shards_are_compared_among_their_own_replicas():
    """Two replicas of two shards each, and an optimizer whose state is in parts everywhere."""
    tensors = ("weight", "weight.exp_avg")
    held = {step: {rank: (rank % 2, 10 * rank + step) for rank in range(4)} for step in range(1, 10)}
    assert compared(held, tensors=tensors).differences == ()
    held[9][3] = (55, 39)
    assert compared(held, struck=(3,), tensors=tensors).lasting == (Difference("weight", (3,), 9),)


def test_why_nothing_is_known():
    alone = {step: {0: (step, step), 1: (step + 1, step + 1)} for step in range(1, 10)}
    assert compared(alone).unknown == Reason("sharded")
    assert compared(same([6, 7])).unknown == Reason("none_before_fault")
    assert compared(same([1, 2])).unknown == Reason("none_after_fault")
    assert compared({step: {0: (1, 1)} for step in range(9)}).unknown == Reason("no_looks")


@given(
    st.integers(2, 6).flatmap(
        lambda ranks: st.tuples(
            st.lists(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks), min_size=1, max_size=4),
            st.lists(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks), min_size=1, max_size=4),
        )
    )
)
def test_a_difference_is_one_between_ranks_that_were_always_equal(values):
    before, after = values
    held = {step: {rank: (value,) for rank, value in enumerate(row)} for step, row in enumerate(before, 1)}
    held |= {step: {rank: (value,) for rank, value in enumerate(row)} for step, row in enumerate(after, 6)}
    found = compared(held, tensors=("weight",))
    ranks = range(len(before[0]))
    pairs = [(a, b) for a in ranks for b in ranks if a < b and all(row[a] == row[b] for row in before)]
    assert (found.unknown is not None) == (not pairs)
    differ = any(after[-1][a] != after[-1][b] for a, b in pairs)
    assert bool(found.lasting) == differ


def ran(*, rank_1_differs):
    """A job of two ranks in which `scale` strikes rank 1 at step 5, as a summary."""
    events = []

    def tell(kind, at, *, pid=1, step=None, rank=None, **fields):
        events.append(Event(kind, "x", at, at, pid, step=step, rank=rank, fields=fields))

    tell("run_started", 0.0, experiment={"name": "n", "job": {"runtime": "command"}}, seed=0, gates=[])
    tell("incidents_planned", 0.0, incidents=[{"incident": 0, "fault": "scale", "target": "rank=1", "step": 5}])
    tell("job_started", 0.0, num_ranks=2, nodes=1, steps=None, runtime="command", command="torchrun t.py")
    tell("attempt_started", 0.1, attempt_number=1, world_size=2)
    for step in range(1, 21):
        if step == 5:
            tell("injected", 4.5, step=5, incident=0, fault="scale", ranks=[1], target="rank=1")
            tell("verified", 4.6, step=5, incident=0, evidence={"summary": "changed"})
            tell("undone", 4.7, step=5, incident=0)
        clock = {"began_monotonic": step - 0.9, "committed_monotonic": float(step)}
        tell("step_committed", float(step), pid=10, step=step, rank=0, epoch=1, loss=1.0, **clock)
        for rank in (0, 1):
            wrong = rank == 1 and step >= 5 and rank_1_differs
            tell(
                "state_checksums",
                step + 0.01,
                pid=10 + rank,
                step=step,
                rank=rank,
                tensors=["weight"],
                sums=f"{step + wrong:08x}",
            )
    tell("job_ended", 21.0, outcome="completed")
    tell("residue", 21.0, processes=[], undo_pending=[])
    tell("run_ended", 21.0, reason="completed")
    return summarized(events)


def test_a_run_whose_loss_shows_nothing_fails_where_replicas_differ():
    summary = ran(rank_1_differs=True)
    assert (summary["verdict"], summary["diverged_units"]) == ("fail", 1)
    assert summary["reasons"][0].startswith("weight of rank 1 differs from the other replicas' since step 5")
    sound = ran(rank_1_differs=False)
    assert (sound["verdict"], sound["diverged_units"]) == ("pass", 0)


def test_steps_that_were_undone_are_not_set_beside_those_that_were_done_again():
    """torchft: rank 0 dies, goes back to step 6 and does 7 and 8 again, while rank 1 stands still until it gets 9."""
    held = same(range(1, 9))
    records = [look(rank, step, sums) for step, ranks in held.items() for rank, sums in ranks.items()]
    again = [(0, 7, (50, 8)), (0, 8, (51, 8)), (0, 9, (52, 8)), (1, 9, (52, 8))]
    for number, (rank, step, sums) in enumerate(again):
        fields = {"sums": "".join(f"{one:08x}" for one in sums), "tensors": ("weight", "bias")}
        at = 20.0 + number
        event = Event("state_checksums", "rank", at, at, 200 + rank, rank=rank, step=step, fields=fields)
        records.append(StateChecksums.of(event))
    assert compare_replicas(records, INJECTED, (1,)).differences == ()


def test_records_of_the_log_are_understood():
    event = Event("state_checksums", "rank", 1.0, 1.0, 7, rank=0, step=3, fields={"sums": "00000001", "tensors": ["w"]})
    record = parse(event)
    assert isinstance(record, StateChecksums) and record.tensors == ("w",)


def test_of_a_sharded_model_no_look_multiplies_what_is_compared():
    # Every rank holds another part of each tensor: sixteen looks took 464 MiB when groups of one rank were kept.
    held = {step: {rank: (100 * step + rank, 100 * step + rank) for rank in range(3)} for step in range(1, 300)}
    records = [look(rank, step, sums) for step, ranks in held.items() for rank, sums in ranks.items()]
    tracemalloc.start()
    try:
        found = compare_replicas(records, 298.5, (1,))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.differences == ()
    assert found.unknown == Reason("sharded")
    assert peak < 1_000 * len(records)


def test_what_two_of_four_ranks_hold_alike_is_compared_beside_what_is_sharded():
    # Two groups of two: sharded over the ranks of each, and the same in both.
    steps = range(1, 40)
    held = {step: {rank: (100 * step + rank % 2, step) for rank in range(4)} for step in steps}
    assert compared(held).differences == ()
    held[39] = {**held[39], 1: (7, 39)}
    assert compared(held).lasting == (Difference("weight", (1,), 39),)


def test_differences_come_in_the_order_in_which_they_were_seen():
    held = {step: {0: (step, step, step), 1: (step, step, step)} for step in range(1, 10)}
    held[7] = {0: (7, 7, 7), 1: (7, 7, 99)}
    held[8] = {0: (8, 8, 8), 1: (99, 8, 99)}
    found = compared(held, tensors=("a", "b", "c"))
    assert [(one.tensor, one.since_step, one.until_step) for one in found.differences] == [("c", 7, 9), ("a", 8, 9)]
