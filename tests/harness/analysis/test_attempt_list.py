"""The attempts of a command one by one: what each loaded and did, how it ended, and which of them were fruitless."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judging.summarize import summarize
from harness.report.attempt_words import SHOWN, attempt_lines, attempt_rows, fruitless_words
from tests.harness.analysis.test_attempt_deaths import AGAIN, NEW, NONE, STORIES, Death, Story, told
from tests.harness.analysis.test_attempts import KILLED, LAST, RESTART, RESUMED, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

TERMINATED = -15


class Attempts(Log):
    """Attempt 1 is killed in step 13, after a checkpoint of step 10; or it is still in that step."""

    def __init__(self, *, is_killed=True):
        super().__init__()
        self.attempt(1)
        self.steps(1, 1, KILLED - 1)
        if is_killed:
            self.kill(1)
            exited = next(event for event in self.events if event.kind == "process_exited")
            exited.fields.update(exited_rank=1, exit=-9)

    def again(self, number, last=None, *, resumed=RESUMED):
        """Attempt `number` does the steps up to `last`, if any."""
        self.at += RESTART
        self.attempt(number)
        self.tell_of(number, 0, "rank_started", world_size=2)
        if last is not None:
            self.steps(number, resumed, last)
        self.at += STEP / 2

    def tell_of(self, number, rank, kind, **fields):
        self.tell(kind, pid=10 * number + rank, **fields)
        self.events[-1] = replace(self.events[-1], rank=rank)

    def loads(self, number, path, *, rank=0, **fields):
        self.tell_of(number, rank, "state_loaded", path=path, by="torch", **fields)

    def raises(self, number, rank, step, exception="FileExistsError", failure="own"):
        self.tell_of(number, rank, "rank_raised", step=step, exception=exception, message="m", failure=failure)

    def ends(self, number, *codes):
        for rank, code in enumerate(codes):
            ended = {"exited_pid": 10 * number + rank, "exited_rank": rank, "exit": code}
            self.tell("process_exited", role="rank", rank_attempt=number, **ended)

    def injects(self, incident, *, ranks=(1,), **fields):
        struck = {
            "incident": incident,
            "fault": "kill-process",
            "is_loss": True,
            "ranks": list(ranks),
            "target": "rank=1",
        }
        self.tell("injected", step=RESUMED, **{**struck, **fields})
        self.tell("verified", step=RESUMED, incident=incident, evidence={"summary": "gone"})


def listed(log, outcome="failed"):
    if outcome == "failed":
        log.tell("job_failed", reason="the command ended with exit code 1")
    return summarized(log.end(outcome))


def crash_loop(num_deaths=3):
    log = Attempts()
    for number in range(2, 2 + num_deaths):
        log.again(number, KILLED - 1)
        log.raises(number, 0, KILLED)
        log.raises(number, 1, KILLED, "RuntimeError", "peer_lost")
        log.ends(number, 1, TERMINATED)
    return log


def test_a_crash_loop_is_told_by_what_killed_it_and_at_which_step():
    log = crash_loop()
    found = listed(log)
    first, *others = found["attempt_list"]
    assert (first["end"]["code"], first["end"]["incident"], first["new_steps"]) == ("by_fault", 0, KILLED - 1)
    for one in others:
        assert (one["end"]["code"], one["end"]["cause"]["exception"]) == ("failed", "FileExistsError")
        assert (one["end"]["cause"]["rank"], one["end"]["cause"]["step"]) == (0, KILLED)
        assert (one["first_step"], one["last_step"], one["new_steps"]) == (RESUMED, KILLED - 1, 0)
    assert [one["is_fruitless"] for one in found["attempt_list"]] == [False, True, True, True]
    assert found["fruitless_attempts"] == 3
    assert found["fruitless_seconds"] == pytest.approx(sum(one["seconds"] for one in others))
    words = fruitless_words(summarize(log.events))
    assert words.endswith(f"died 3 of 3 times at step {KILLED} with FileExistsError") and "ttempts 2 to 4" in words


def test_deaths_that_differ_are_told_apart():
    log = Attempts()
    log.again(2, KILLED - 1)
    log.raises(2, 0, KILLED)
    log.ends(2, 1, TERMINATED)
    log.again(3)
    log.ends(3, TERMINATED, -9)
    listed(log)
    words = fruitless_words(summarize(log.events))
    assert f"died 1 of 2 times at step {KILLED} with FileExistsError" in words
    assert "died 1 of 2 times before the first step with killed by SIGKILL" in words


def test_what_another_fault_ends_is_not_fruitless():
    log = Attempts()
    log.again(2, RESUMED)
    log.injects(1)
    log.ends(2, TERMINATED, -9)
    log.again(3, LAST)
    found = listed(log, "completed")
    assert [one["end"]["code"] for one in found["attempt_list"]] == ["by_fault", "by_fault", "completed"]
    assert found["attempt_list"][1]["end"]["incident"] == 1
    assert found["fruitless_attempts"] == 0


@pytest.mark.parametrize(("undone", "fruitless"), [(False, 0), (True, 1)])
def test_what_ends_under_a_lasting_fault_is_not_fruitless_until_that_is_undone(undone, fruitless):
    log = Attempts(is_killed=False)
    lasting = {"fault": "fill-disk", "is_loss": False, "goes_on": True, "ranks": [0], "target": "rank=0"}
    log.tell("injected", step=KILLED, incident=0, **lasting)
    log.tell("verified", step=KILLED, incident=0, evidence={"summary": "full"})
    log.raises(1, 0, KILLED, "OSError")
    log.ends(1, 1, TERMINATED)
    if undone:
        log.tell("undone", incident=0)
    log.again(2, KILLED - 1)
    log.raises(2, 0, KILLED, "OSError")
    log.ends(2, 1, TERMINATED)
    found = listed(log)
    assert found["attempt_list"][0]["end"]["code"] == "under_fault"
    assert found["attempt_list"][1]["end"]["code"] == ("failed" if undone else "under_fault")
    assert found["attempt_list"][1]["end"]["cause"]["exception"] == "OSError"
    assert found["fruitless_attempts"] == fruitless


@pytest.mark.parametrize(("num_restarts", "world_size", "losses"), [(0, 4, 0), (1, 4, 1), (0, 2, 1)])
def test_ranks_that_their_launcher_ended_because_an_agent_joined_are_no_loss(num_restarts, world_size, losses):
    """Torchrun ends all ranks, and starts more of them without counting a restart."""
    log = Attempts(is_killed=False)
    log.at += STEP / 2
    log.ends(1, TERMINATED, TERMINATED)
    log.again(2, LAST, resumed=KILLED)
    for event, said in zip(
        (event for event in log.events if event.kind == "attempt_started"),
        ((0, 2), (num_restarts, world_size)),
        strict=True,
    ):
        event.fields.update(num_restarts=said[0], world_size=said[1], max_restarts=3)
    found = listed(log, "completed")
    assert [one["end"]["code"] for one in found["attempt_list"]] == ["by_launcher", "completed"]
    assert len(found["unplanned_losses"]) == losses


def test_a_rank_that_ended_well_is_no_failure_and_of_one_that_runs_nothing_is_known():
    log = Attempts()
    log.again(2)
    log.ends(2, 0, 0)
    log.again(3, LAST)
    running = summarized(log.events)
    assert [one["end"]["code"] for one in running["attempt_list"]] == ["by_fault", "completed", "running"]
    assert [one["is_fruitless"] for one in running["attempt_list"]] == [False, True, False]


@pytest.mark.parametrize(
    ("paths", "loaded"),
    [
        (["/c/step_10/model.pt", "/c/step_10/optimizer.pt"], "/c/step_10"),
        (["/c/last.pt"], "/c/last.pt"),
        (["/c/last.pt", "/c/last.pt"], "/c/last.pt"),
        (["/hub/base.safetensors", "/c/step_10"], "/c/step_10"),
        ([], None),
    ],
)
def test_an_attempt_has_loaded_what_it_read_last_before_its_first_step(paths, loaded):
    log = Attempts()
    log.again(2)
    for path in paths:
        log.loads(2, path)
        log.loads(2, "/of/another/rank.pt", rank=1)
    log.loads(2, "/c/broken.pt", error="RuntimeError: no")
    if not paths:
        log.events = [one for one in log.events if one.fields.get("path") != "/of/another/rank.pt"]
    log.steps(2, RESUMED, LAST)
    log.loads(2, "/c/later.pt")
    found = listed(log, "completed")
    assert [one["loaded"] for one in found["attempt_list"]] == [None, loaded]


def test_one_attempt_has_no_table_and_of_many_the_first_and_the_last_are_listed():
    log = Log()
    log.attempt(1)
    log.steps(1, 1, LAST)
    assert attempt_lines(summarize(log.end())) == []
    rows = attempt_rows(summarize(crash_loop(2 * SHOWN).events))
    assert len(rows) == SHOWN + 1 and rows[SHOWN // 2].number == "..."
    assert [row.number for row in rows if row.number != "..."] == ["1", "2", "3", "4", "5", "6"] + [
        str(number) for number in range(2 * SHOWN - 4, 2 * SHOWN + 2)
    ]


@pytest.mark.parametrize("name", STORIES)
def test_of_every_story_the_list_agrees_with_the_figures(name):
    agrees(summarized(told(STORIES[name])))


def agrees(found):
    attempts = found["attempt_list"]
    assert [one["number"] for one in attempts] == [*range(1, found["attempts"] + 1)]
    assert sum(one["new_steps"] for one in attempts) == found["steps_committed"]
    assert sum(one["is_fruitless"] for one in attempts) == found["fruitless_attempts"]
    assert not any(one["is_fruitless"] and one["new_steps"] for one in attempts)
    assert all(one["seconds"] >= 0 for one in attempts)


deaths = st.builds(
    Death, steps=st.sampled_from([AGAIN, NEW, NONE]), rank=st.integers(0, 1), code=st.sampled_from([1, -6, -9])
)


@given(deaths=st.lists(deaths, max_size=5), lives=st.booleans())
def test_whatever_ends_the_attempts_the_list_agrees_with_the_figures(deaths, lives):
    agrees(summarized(told(Story(tuple(deaths), lives=lives))))
