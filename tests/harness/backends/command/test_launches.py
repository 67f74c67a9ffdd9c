"""Which attempt a process that was started with RANK belongs to, by values alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.command.launches import Launch, Launches
from harness.node.process_table import ProcessTable
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

# No process has such a pid.
NOBODY = 2**30


def process(number):
    return ProcessId(NOBODY + number, 1)


def launch(pid, rank, *, parent=1, count=1, key="a", is_placed=True, ancestors=()):
    return Launch(
        process=process(pid),
        parent=process(1000 + parent),
        rank=rank,
        node=0,
        world_size=2,
        start_count=count,
        start_key=(key,),
        is_placed=is_placed,
        began_seconds=0.0,
        ancestors=tuple(ancestors),
    )


def add(launches, *greeted, ended=None):
    """They greet one after the other; with `ended` each has ended so afterwards. Returns their attempts."""
    for one in greeted:
        launches.add(one)
        if ended is not None:
            one.has_ended, one.exit_code = True, ended
    return [one.attempt for one in greeted]


def test_ranks_that_one_launcher_starts_together_are_one_attempt():
    launches = Launches()
    assert add(launches, launch(1, 0), launch(2, 1), ended=1) == [1, 1]
    # torchrun counts its restarts.
    assert add(launches, launch(3, 1, count=2), launch(4, 0, count=2), ended=1) == [2, 2]
    assert add(launches, launch(5, 0, count=3), launch(6, 1, count=3)) == [3, 3]


def test_a_shell_loop_around_a_launcher_that_does_not_count():
    launches = Launches()
    assert add(launches, launch(1, 0), launch(2, 1), ended=1) == [1, 1]
    # Rank 1 was not even started.
    assert add(launches, launch(3, 0, parent=2, key="b"), ended=1) == [2]
    # Now it is the first that greets.
    assert add(launches, launch(4, 1, parent=3, key="c"), launch(5, 0, parent=3, key="c")) == [3, 3]


def test_agents_of_two_nodes_are_one_attempt():
    launches = Launches()
    assert add(launches, launch(1, 0, parent=1), launch(2, 1, parent=2)) == [1, 1]
    assert add(launches, launch(3, 1, parent=2, count=2), launch(4, 0, parent=1, count=2)) == [2, 2]


def test_a_shell_loop_around_one_rank():
    launches = Launches()
    assert add(launches, launch(1, 0), ended=1) == [1]
    assert add(launches, launch(2, 0), ended=-9) == [2]
    assert add(launches, launch(3, 0), ended=None) == [3]


def test_the_same_restarted_though_its_launcher_does_not_count_it():
    """Torchrun does not count a restart for a change of the members."""
    launches = Launches()
    add(launches, launch(1, 0), launch(2, 1))
    for pid, rank in ((1, 0), (2, 1)):
        launches.observe(process(pid), rank, 1)
        launches.of(process(pid)).has_ended = True
    assert add(launches, launch(3, 1), launch(4, 0)) == [2, 2]


@pytest.mark.parametrize("when", ["before", "beside"])
def test_what_a_wrapper_starts_before_or_beside_the_script_is_no_attempt(when):
    launches = Launches()
    helper, script = launch(1, 0), launch(2, 0)
    assert add(launches, helper, ended=0 if when == "before" else None) == [1]
    assert add(launches, script) == [1]
    assert launches.is_beside_another(helper) and not launches.is_beside_another(script)
    assert launches.observe(script.process, 0, 1) == 1
    script.has_ended = True
    # But that one did train.
    assert add(launches, launch(3, 0)) == [2]


def test_a_process_that_becomes_the_script_has_not_been_started_again_and_one_that_trained_has():
    launches = Launches()
    assert add(launches, launch(1, 0)) == [1]
    assert add(launches, launch(1, 0)) == [1]
    launches.observe(process(1), 0, 1)
    assert add(launches, launch(1, 0)) == [2]


def test_an_agent_that_did_not_greet_counts_as_it_always_did():
    launches = Launches()
    assert launches.observe(process(1), 0, 1) == 1
    assert launches.observe(process(2), 0, 1) == 2
    # The launcher's count is believed where it is larger.
    assert launches.observe(process(3), 0, 5) == 5
    # Without a greeting, a process that replaced itself is there a second time.
    assert launches.observe(process(3), 0, 5) == 6


def test_a_process_may_have_another_rank_in_its_process_group_than_it_was_started_with():
    launches = Launches()
    add(launches, launch(1, 0))
    assert launches.observe(process(1), 3, 1) == 1


def test_a_launcher_that_inherited_rank_is_none():
    launches, launcher = Launches(), launch(8, 0, is_placed=False)
    assert add(launches, launcher) == [None]
    assert add(launches, launch(1, 0, ancestors=[launcher.process]), launch(2, 1)) == [1, 1]
    assert launcher.is_launcher


def test_a_launcher_that_inherited_rank_and_whose_rank_does_not_greet():
    launches, launcher = Launches(), launch(8, 0, is_placed=False)
    add(launches, launcher)
    assert launches.observe(process(1), 0, 1, [launcher.process]) == 1
    assert launcher.is_launcher


def test_a_wrapper_in_python_lends_its_attempt_to_the_script_that_it_starts_once():
    launches = Launches()
    assert add(launches, launch(9, 0), ended=1) == [1]
    wrapper = launch(8, 0, count=2)
    assert add(launches, wrapper) == [2]
    assert launches.observe(process(1), 0, 2, [wrapper.process]) == 2
    assert launches.observe(process(1), 0, 2, [wrapper.process]) == 3


def test_alone_with_rank_and_without_a_local_one_it_is_a_rank_when_it_says_so_or_has_ended():
    launches = Launches()
    alone = launch(1, 0, is_placed=False)
    assert add(launches, alone) == [None]
    assert launches.observe(alone.process, 0, 1) == 1
    second = launch(2, 0, is_placed=False)
    assert add(launches, second, ended=1) == [None]
    assert (launches.place(second), launches.place(second)) == (2, 2)


def test_whom_rank_alone_does_not_tell():
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    found = Launch.of(process(1), environment, ProcessTable(), 0.0)
    assert found is not None and (found.rank, found.world_size, found.is_placed) == (1, 2, True)
    for changed in ({"REPLICA_GROUP_ID": "0"}, {"TORCHFT_LIGHTHOUSE": "http://x"}, {"RANK": "first"}, {"RANK": ""}):
        assert Launch.of(process(1), {**environment, **changed}, ProcessTable(), 0.0) is None


def member(pid, rank, *, agent, size, count=1):
    """A rank of an elastic job; each agent has one."""
    one = launch(pid, rank, parent=agent, count=count)
    one.world_size, one.local_rank = size, 0
    return one


def ends(launches, *pids):
    """They had trained, and have ended."""
    for pid in pids:
        one = launches.of(process(pid))
        launches.observe(process(pid), one.rank, one.start_count)
        one.has_ended, one.exit_code = True, -15


@pytest.mark.parametrize("newcomer_is_first", [False, True])
def test_an_agent_that_joins_makes_an_attempt_that_no_launcher_counts(newcomer_is_first):
    launches = Launches()
    add(launches, member(1, 0, agent=1, size=1))
    ends(launches, 1)
    both = [member(2, 0, agent=1, size=2), member(3, 1, agent=2, size=2)]
    assert add(launches, *(reversed(both) if newcomer_is_first else both)) == [2, 2]


def test_the_agent_that_is_left_makes_an_attempt_with_another_rank_that_no_launcher_counts():
    launches = Launches()
    add(launches, member(1, 0, agent=1, size=2), member(2, 1, agent=2, size=2))
    ends(launches, 1, 2)
    assert add(launches, member(3, 0, agent=2, size=1)) == [2]


def test_an_agent_in_the_place_of_another_makes_an_attempt_in_which_ranks_are_exchanged():
    launches = Launches()
    add(launches, member(1, 0, agent=1, size=2), member(2, 1, agent=2, size=2))
    ends(launches, 1, 2)
    assert add(launches, member(3, 0, agent=3, size=2), member(4, 1, agent=1, size=2)) == [2, 2]
    ends(launches, 3, 4)
    assert add(launches, member(5, 0, agent=1, size=2, count=2), member(6, 1, agent=3, size=2, count=2)) == [3, 3]


@given(
    rounds=st.lists(st.permutations(range(4)).flatmap(lambda agents: st.integers(1, 4).map(lambda n: agents[:n]))),
    is_counted=st.booleans(),
)
def test_each_round_of_agents_is_one_attempt_whoever_joins_or_leaves(rounds, is_counted):
    """`rounds`: the agents of each, in the order of their ranks, which greet in any order."""
    launches, pid, counts = Launches(), 0, dict.fromkeys(range(4), 1)
    # Two rounds of entirely different agents of one size are told apart by their addresses alone.
    for number, agents in enumerate(rounds, start=1):
        begun = []
        for rank, agent in enumerate(agents):
            pid += 1
            begun.append(member(pid, rank, agent=agent, size=len(agents), count=counts[agent]))
            begun[-1].start_key = (str(number),)
            counts[agent] += is_counted
        assert add(launches, *reversed(begun)) == [number] * len(agents)
        ends(launches, *range(pid - len(agents) + 1, pid + 1))
