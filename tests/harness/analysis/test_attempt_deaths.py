"""Whose doing the end of an attempt is: up to the first new step after a fault it is the fault's."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.analysis.test_attempts import KILLED, RESTART, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

SIGKILL, SIGABRT = -9, -6
# The fault comes in step 13 (`Log.kill`), so that 12 is the last step that was committed before it.
BEFORE = KILLED - 1


@dataclass(frozen=True)
class Death:
    """An attempt does the steps of `steps`, if any, and then `rank` ends with `code`."""

    steps: range
    rank: int
    code: int


@dataclass(frozen=True)
class Story:
    """What comes after the fault; `lives`: after these deaths one more attempt trains to the end."""

    deaths: tuple[Death, ...]
    lives: bool = True
    unplanned: tuple[tuple[int, int, int], ...] = ()
    fault: dict = field(default_factory=dict)


def told(story: Story):
    log = Log()
    log.attempt(1)
    log.steps(1, 1, BEFORE)
    log.kill(1)
    injected = next(event for event in log.events if event.kind == "injected")
    injected.fields.update({"processes": [{"pid": 11}], **story.fault})
    exited = next(event for event in log.events if event.kind == "process_exited")
    exited.fields.update(exited_rank=1, exit=SIGKILL)
    number = 1
    for number, death in enumerate(story.deaths, start=2):
        log.at += RESTART
        log.attempt(number)
        if death.steps:
            log.steps(number, death.steps[0], death.steps[-1])
        log.at += STEP / 2
        ended = {"role": "rank", "rank_attempt": number}
        for rank, code in ((death.rank, death.code), (1 - death.rank, -15)):
            log.tell("process_exited", exited_pid=10 * number + rank, exited_rank=rank, exit=code, **ended)
    if story.lives:
        log.at += RESTART
        log.attempt(number + 1)
        log.steps(number + 1, 11, 30)
        return log.end()
    log.tell("job_failed", reason="the command ended with exit code 1")
    return log.end("failed")


AGAIN, NEW, NONE = range(11, 13), range(11, 18), range(0)
STORIES = {
    "a crash loop: the same step dies again": Story(tuple(Death(AGAIN, 0, 1) for _ in range(3)), lives=False),
    "no attempt comes to a step": Story((Death(NONE, 0, 1), Death(NONE, 1, SIGABRT)), lives=False),
    "it dies once while it does the lost steps again, then lives": Story((Death(range(11, 12), 0, 1),)),
    "it dies before any step, then lives": Story((Death(NONE, 1, 1),)),
    "a launcher's store that is full kills each attempt at the same step": Story(
        (Death(AGAIN, 0, SIGKILL), Death(AGAIN, 1, SIGKILL)), lives=False
    ),
    "somebody kills the other rank while it starts": Story((Death(NONE, 0, SIGKILL),), unplanned=((20, 0, 2),)),
    "somebody kills the other rank while it does lost steps again": Story(
        (Death(range(11, 12), 0, SIGKILL),), unplanned=((20, 0, 2),)
    ),
    "somebody kills the same rank in the next attempt": Story((Death(NONE, 1, SIGKILL),), unplanned=((21, 1, 2),)),
    "two kills from outside at different steps are no loop": Story(
        (Death(range(11, 12), 0, SIGKILL), Death(AGAIN, 0, SIGKILL)), unplanned=((20, 0, 2), (30, 0, 3))
    ),
    "somebody kills a rank long after": Story((Death(NEW, 1, SIGKILL),), unplanned=((21, 1, 2),)),
    "a rank fails by itself long after": Story((Death(NEW, 0, 1),), unplanned=((20, 0, 2),)),
    "and then the loop of that one is its own": Story(
        (Death(NEW, 0, 1), Death(range(16, 18), 0, 1)), unplanned=((20, 0, 2), (30, 0, 3))
    ),
    "somebody kills the last attempt there is": Story((Death(NEW, 0, SIGKILL),), lives=False, unplanned=((20, 0, 2),)),
    "a pause does not kill": Story(
        (Death(NONE, 0, SIGKILL),),
        unplanned=((20, 0, 2),),
        fault={"fault": "pause-process", "is_loss": False, "goes_on": True, "processes": []},
    ),
    "a fault that goes on may kill whoever has its rank": Story(
        (Death(NONE, 1, SIGKILL),), fault={"is_loss": False, "goes_on": True, "processes": []}
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_whose_death_it_is(name):
    story = STORIES[name]
    found = summarized(told(story))
    lost = [
        (pid, rank, attempt)
        for loss in found["unplanned_losses"]
        for pid, rank, attempt in zip(loss["pids"], loss["ranks"] * 2, loss["attempts"], strict=False)
    ]
    assert tuple(lost) == story.unplanned
    said = " ".join((*found["reasons"], *found["caveats"]))
    assert ("no fault explains" in said) == bool(story.unplanned)
    for pid, rank, attempt in story.unplanned:
        assert f"pid {pid}" in said and f"attempt {attempt}" in said and f"Rank {rank} " in said
    assert found["productive_seconds"] + sum(found["badput_seconds"].values()) == pytest.approx(
        found["wall_clock_seconds"]
    )


def test_a_crash_loop_is_a_failure_and_never_made_progress():
    found = summarized(told(STORIES["a crash loop: the same step dies again"]))
    assert (found["verdict"], found["exit_code"], found["attempts"]) == ("fail", 1, 4)
    assert found["incidents"][0]["progress_seconds"] is None
    assert (found["fruitless_attempts"], found["fruitless_steps"]) == (3, [12, 12, 12])
    assert found["fruitless_seconds"] == pytest.approx(3 * 2.5 * STEP)


def test_who_kills_during_the_recovery_is_told_apart_and_the_costs_cannot_be():
    found = summarized(told(STORIES["somebody kills the other rank while it does lost steps again"]))
    assert (found["verdict"], found["exit_code"]) == ("inconclusive", 5)
    assert found["unplanned_losses"][0]["mixed_with"] == [0]


def test_what_is_left_behind_is_ended_by_chaos_and_lost_to_nobody():
    log = Log()
    log.tell("process_started", role="launcher", started_pid=5, start_ticks=1)
    log.attempt(1)
    log.steps(1, 1, 30)
    log.tell("process_exited", role="launcher", exited_pid=5, exit=1)
    for rank in (0, 1):
        ended = {"exited_pid": 10 + rank, "exited_rank": rank, "exit": SIGKILL, "rank_attempt": 1}
        log.tell("process_exited", role="rank", **ended)
    log.tell("job_failed", reason="the command ended with exit code 1")
    assert summarized(log.end("failed"))["unplanned_losses"] == []


@given(
    deaths=st.lists(
        st.builds(
            Death,
            steps=st.integers(10, BEFORE).map(lambda last: range(11, last + 1)),
            rank=st.integers(0, 1),
            code=st.sampled_from([1, 3, SIGABRT, -11]),
        ),
        max_size=5,
    ),
    lives=st.booleans(),
)
def test_however_often_it_fails_by_itself_before_a_new_step_the_fault_has_it(deaths, lives):
    found = summarized(told(Story(tuple(deaths), lives=lives)))
    assert found["unplanned_losses"] == []
    assert found["fruitless_attempts"] == len(deaths)
    assert found["attempts"] == 1 + len(deaths) + lives
    assert (found["verdict"] == "pass") == lives
    assert (found["incidents"][0]["progress_seconds"] is None) == (not lives)


@given(code=st.sampled_from([1, SIGABRT, SIGKILL]), rank=st.integers(0, 1), last=st.integers(KILLED + 1, 25))
def test_after_a_new_step_no_end_is_the_faults(code, rank, last):
    found = summarized(told(Story((Death(range(11, last + 1), rank, code),))))
    assert [loss["ranks"] for loss in found["unplanned_losses"]] == [[rank]]
    assert found["fruitless_attempts"] == 0
