"""The attempts of a job over any order of what is observed of its processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults.base import OwnedProcess
from harness.backends.command.attempts import (
    AttemptBegan,
    Attempts,
    GroupRejoined,
    Hello,
    RankEnded,
    RankStarted,
    Stopping,
)
from harness.backends.command.launches import Launch
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

NUM_RANKS = 3
# No process has such a pid.
NOBODY = 2**30


def process(number):
    return ProcessId(NOBODY + number, 1)


class Job:
    """Feeds observations of processes, which have numbers, and keeps what is decided."""

    def __init__(self):
        self.attempts = Attempts()
        self.decided = []

    def greet(self, number, rank, *, parent=1000, count=1, is_placed=True, key=None):
        launch = Launch(
            process=process(number),
            parent=process(parent),
            rank=rank,
            node=0,
            world_size=NUM_RANKS,
            start_count=count,
            start_key=(str(parent if key is None else key),),
            is_placed=is_placed,
            began_seconds=float(number),
            ancestors=(process(parent),),
        )
        self.decided += self.attempts.greet(launch)

    def report(self, number, rank, *, count=1, replica=None, is_marked=True, parent=1000):
        hello = Hello(
            owned=OwnedProcess("rank", process(number), rank=rank, node=0),
            rank=rank,
            start_count=count,
            world_size=NUM_RANKS,
            ancestors=(process(parent),),
            blamed_as=(0, number),
            replica=replica,
            is_marked=is_marked,
        )
        attempt, decisions = self.attempts.report(hello)
        self.decided += decisions
        return attempt

    def end(self, number, code):
        self.decided += self.attempts.end(process(number), code)

    def commit(self, number):
        self.decided += self.attempts.commit(NOBODY + number)

    def see_gone(self, number):
        self.attempts.see_gone([process(number)])

    def finish(self, rank):
        self.attempts.finish(rank)

    def of(self, kind):
        return [one for one in self.decided if isinstance(one, kind)]


numbers, ranks, counts = st.integers(1, 12), st.integers(0, NUM_RANKS - 1), st.integers(1, 3)
observations = st.one_of(
    st.tuples(
        st.just("greet"),
        numbers,
        ranks,
        st.fixed_dictionaries({"parent": st.integers(1000, 1002), "count": counts, "is_placed": st.booleans()}),
    ),
    st.tuples(
        st.just("report"),
        numbers,
        ranks,
        st.fixed_dictionaries(
            {
                "count": counts,
                "replica": st.one_of(st.none(), st.integers(0, 1)),
                "is_marked": st.sampled_from([True, True, True, False]),
            }
        ),
    ),
    st.tuples(st.just("end"), numbers, st.sampled_from([None, 0, 1, -9])),
    st.tuples(st.just("commit"), numbers),
    st.tuples(st.just("see_gone"), numbers),
    st.tuples(st.just("finish"), ranks),
)


def play(observed):
    job, is_over = Job(), set()
    for kind, number, *facts in observed:
        if kind in ("greet", "report") and number in is_over:
            # No process starts after its end.
            continue
        if kind == "end":
            is_over.add(number)
        more = facts.pop() if facts and isinstance(facts[-1], dict) else {}
        getattr(job, kind)(number, *facts, **more)
    return job


any_job = st.lists(observations, max_size=40).map(play)


@given(any_job)
def test_attempts_begin_once_in_ascending_order(job):
    begun = [one.number for one in job.of(AttemptBegan)]
    assert begun == sorted(set(begun))
    assert job.attempts.number == max(begun, default=0)


@given(any_job)
def test_a_rank_starts_in_an_attempt_that_has_begun_or_an_earlier_one(job):
    newest = 0
    for decision in job.decided:
        match decision:
            case AttemptBegan(number=number):
                newest = number
            case RankStarted(attempt=attempt):
                assert 1 <= attempt <= newest


@given(any_job)
def test_the_end_of_a_process_is_decided_once_and_as_what_it_was_started_as(job):
    started, ended = {}, []
    for decision in job.decided:
        match decision:
            case RankStarted(owned, rank, attempt):
                assert owned.process not in ended
                started[owned.process] = rank, attempt
            case RankEnded(gone, rank, attempt):
                assert gone not in ended
                assert started[gone] == (rank, attempt)
                ended.append(gone)


@given(any_job)
def test_no_process_is_two_ranks_of_the_attempts_under_way(job):
    """What a process is follows from what was observed of it last; of a rank, the newest process can be held."""
    for rank, owned in job.attempts.ranks.items():
        assert owned.rank == rank
        assert job.attempts.rank_of(owned.process) in (None, *range(NUM_RANKS))
    for one in job.attempts.running():
        starts = [decision for decision in job.of(RankStarted) if decision.owned.process == one]
        if starts:
            assert job.attempts.rank_of(one) == starts[-1].rank


@given(any_job)
def test_of_a_job_in_which_a_rank_finished_not_all_are_lost(job):
    lost = job.attempts.last_lost()
    if lost is not None:
        rank, code = lost
        assert code != 0
        assert any(one.rank == rank and one.exit == code for one in job.of(RankEnded))


@given(any_job)
def test_what_has_ended_does_not_run(job):
    running = job.attempts.running()
    assert len(running) == len(set(running))
    for ended in job.of(RankEnded):
        assert ended.process not in running


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, -9, -6])), min_size=1, max_size=6))
def test_a_launcher_that_starts_all_ranks_again_makes_one_attempt_of_each_start(starts):
    """Whether it counts its starts itself (torchrun) or another launcher is started by a shell loop."""
    job, number = Job(), 0
    for index, (num_ranks, code) in enumerate(starts):
        processes = [(number := number + 1, rank) for rank in range(num_ranks)]
        for one, rank in processes:
            job.greet(one, rank, parent=2000 + index)
        for one, rank in processes:
            assert job.report(one, rank) >= 1
        for one, _ in processes:
            job.end(one, code)
    assert [one.number for one in job.of(AttemptBegan)] == list(range(1, len(starts) + 1))
    assert len(job.of(RankEnded)) == number
    assert job.attempts.running() == []


def test_a_replica_group_that_comes_back_rejoins_with_its_first_step_and_begins_no_attempt():
    job = Job()
    for number, (rank, replica) in enumerate([(0, 0), (1, 0), (2, 1)], 1):
        job.report(number, rank, replica=replica)
    for number in (1, 2):
        job.end(number, -9)
    job.report(11, 0, replica=0)
    job.report(12, 1, replica=0)
    assert len(job.of(AttemptBegan)) == 1
    job.commit(3)
    assert job.of(GroupRejoined) == []
    job.commit(11)
    assert job.of(GroupRejoined) == [GroupRejoined(1, (0, 1))]


def test_replica_groups_that_all_end_begin_another_attempt():
    job = Job()
    job.report(1, 0, replica=0)
    job.report(2, 1, replica=1)
    job.see_gone(1)
    job.see_gone(2)
    job.report(3, 0, replica=0)
    assert [one.number for one in job.of(AttemptBegan)] == [1, 2]


def test_a_process_without_the_mark_of_the_run_is_counted_and_is_no_rank():
    job = Job()
    assert job.report(1, 0, is_marked=False) == 1
    assert job.attempts.ranks == {} and job.decided == []
    assert job.report(2, 0) == 2


def test_a_rank_without_a_replica_group_is_started_again_beside_no_others():
    job = Job()
    job.report(1, 0)
    job.report(2, 1, replica=1)
    job.report(3, 0)
    job.commit(3)
    assert job.of(GroupRejoined) == []


def test_all_ranks_are_lost_only_when_the_newest_process_of_each_has_failed():
    job = Job()
    job.report(1, 0)
    job.report(2, 1)
    job.end(1, 1)
    assert job.attempts.last_lost() is None
    job.end(2, -9)
    assert job.attempts.last_lost() == (0, 1)
    job.report(3, 0)
    assert job.attempts.last_lost() is None


def test_a_launcher_blames_by_a_pid_that_may_be_of_an_earlier_attempt():
    job = Job()
    job.report(1, 2)
    job.end(1, 1)
    job.report(2, 2)
    assert (job.attempts.blamed(0, 1), job.attempts.blamed(0, 2), job.attempts.blamed(1, 1)) == (2, 2, None)


def of_host(host, rank, number=1):
    """A rank of a launcher that counts all hosts as one node, such as `srun --output`: its pid there says little."""
    return Hello(
        owned=OwnedProcess("rank", ProcessId(NOBODY + number, 1, Host(host, f"boot of {host}")), rank=rank, node=0),
        rank=rank,
        start_count=1,
        world_size=NUM_RANKS,
        ancestors=(),
        blamed_as=(0, number),
    )


def test_one_pid_on_two_hosts_blames_nobody():
    attempts = Attempts()
    attempts.report(of_host("beta", 0))
    assert attempts.blamed(0, 1) == 0
    attempts.report(of_host("gamma", 1))
    attempts.report(of_host("gamma", 2, number=2))
    assert (attempts.blamed(0, 1), attempts.blamed(0, 2)) == (None, 2)
    # Nor once one of them reports again.
    attempts.report(of_host("beta", 0))
    assert attempts.blamed(0, 1) is None


def test_the_end_of_a_process_is_not_that_of_its_namesake_on_another_host():
    attempts = Attempts()
    beta, gamma = of_host("beta", 0), of_host("gamma", 1)
    for hello in (beta, gamma):
        attempts.report(hello)
    assert {one.rank for one in attempts.end(beta.owned.process, -9) if isinstance(one, RankEnded)} == {0}
    assert list(attempts.running()) == [gamma.owned.process]


@given(
    st.booleans(),
    st.floats(0.1, 10.0),
    st.lists(st.tuples(st.floats(0.05, 5.0), st.booleans()), max_size=100),
)
def test_stopping_ends_whatever_is_left_and_asks_once_before_it_kills(has_launchers, timeout, looks):
    stopping, now, acts, began = Stopping(timeout, has_launchers=has_launchers), 100.0, [], 100.0
    # In the end nothing changes any more, and the clock goes on.
    for passed, has_processes in [*looks, *[(timeout / 2, True)] * 8]:
        acts.append(stopping.act(now, has_processes=has_processes))
        if acts[-1] == "over":
            break
        now += passed
    assert acts[-1] == "over"
    assert now - began <= 2 * (timeout + max([timeout / 2, *(passed for passed, _ in looks)]))
    assert acts.count("ask") == has_launchers
    assert acts[:1] == ["ask"] or not has_launchers
    assert "wait" not in acts[acts.index("kill") :] if "kill" in acts else True


def test_nothing_is_killed_while_launchers_may_end_their_ranks():
    stopping = Stopping(5.0, has_launchers=True)
    looks = [(0.0, True), (1.0, True), (4.9, True), (5.1, True), (5.2, True), (5.3, False)]
    acts = [stopping.act(now, has_processes=has_processes) for now, has_processes in looks]
    assert acts == ["ask", "wait", "wait", "kill", "kill", "over"]
