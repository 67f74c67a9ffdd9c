"""Runs that prove nothing for a job and nothing against it: it left in order, or nothing read what was damaged."""

import pytest

from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

STEP, RESTART = 0.1, 3.0
DAMAGE = "truncate-checkpoint"


class Log:
    """A log of a command of two ranks with an exact clock: `at` is now. Rank r of attempt n has the pid 10 * n + r."""

    def __init__(self, *faults, steps=None, gates=(), runtime="command"):
        self.events = []
        self.at = 100.0
        self.tell("run_started", experiment={"name": "n", "job": {"runtime": runtime}}, seed=0, gates=list(gates))
        plans = [{"incident": i, "fault": fault, "target": target} for i, (fault, target) in enumerate(faults)]
        self.tell("incidents_planned", incidents=plans)
        self.tell("job_started", num_ranks=2, nodes=1, steps=steps, runtime=runtime, command="torchrun t.py")
        self._plans = plans

    def tell(self, kind, *, pid=1, step=None, **fields):
        self.events.append(Event(kind, "x", self.at, self.at, pid, step=step, fields=fields))

    def attempt(self, number, first, last, world_size=2):
        self.at += RESTART
        self.tell("attempt_started", attempt_number=number, world_size=world_size)
        for rank in range(world_size):
            pid = 10 * number + rank
            self.tell("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)
        self.tell("steps_counted", pid=10 * number, step=first, count_kept_by="optimizer")
        self.steps(number, first, last)

    def steps(self, number, first, last):
        for step in range(first, last + 1):
            began, self.at = self.at, self.at + STEP
            clock = {"began_monotonic": began, "committed_monotonic": self.at}
            self.tell("step_committed", pid=10 * number, step=step, epoch=number, **clock)

    def save(self, number, step):
        self.tell("checkpoint_written", pid=10 * number, step=step, saved=[["/c.pt", 1, step]], blocking_seconds=0.0)

    def inject(self, incident=0, *, step=25, **fields):
        self.at += STEP / 2
        plan = self._plans[incident]
        known = {"fault": plan["fault"], "target": plan["target"], "incident": incident}
        self.tell("injected", step=step, **known, **fields)
        self.tell("verified", step=step, incident=incident, evidence=fields.pop("evidence", {"summary": "seen"}))

    def undo(self, incident=0):
        self.tell("undone", incident=incident)

    def leave(self, number, codes=(0, 0)):
        for rank, code in enumerate(codes):
            pid = 10 * number + rank
            if code == 0:
                self.tell("rank_finished", pid=pid)
            self.tell("process_exited", role="rank", exited_pid=pid, exit=code, exited_rank=rank, rank_attempt=number)

    def end(self, outcome="completed", reason="the command ended with exit code 1"):
        if outcome == "failed":
            self.tell("job_failed", reason=reason, exit=1)
        self.tell("job_ended", outcome=outcome)
        for incident, _ in enumerate(self._plans):
            self.undo(incident)
        self.tell("residue", processes=[], undo_pending=[])
        self.tell("run_ended", reason="completed", num_events=len(self.events) + 1)
        return self.events


TERM = {"is_loss": True, "asks_to_leave": True}


def undecided(summary, incident=0):
    """Why it is unknown whether the job recovered from the incident."""
    reasons = [one for one in summary["reason_codes"] if one["code"] == "recovery_undecided"]
    (why,) = (one["why"] for one in reasons if one["incident"] == incident)
    return why


def codes_of(summary):
    return [reason["code"] for reason in summary["reason_codes"]]


def told_to_leave(*, save=True, codes=(0, 0), more_steps=0, again=False, outcome="failed", steps=None, **fields):
    log = Log(("kill-process", "role=launcher"), steps=steps)
    log.attempt(1, 1, 24)
    log.save(1, 20)
    log.inject(**{**TERM, **fields})
    log.steps(1, 25, 25 + more_steps)
    if save:
        log.save(1, 25 + more_steps)
    log.leave(1, codes)
    if again:
        log.attempt(2, 26, 60)
        log.leave(2)
    return summarized(log.end(outcome))


def test_a_job_that_leaves_in_order_is_not_said_to_have_died():
    summary = told_to_leave()
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert undecided(summary) == {"code": "left_in_order", "step": 25, "saved_step": 25}
    assert "job_died" not in codes_of(summary)
    assert summary["incidents"][0]["recovered"] is None and summary["unrecovered_incidents"] == 0


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_steps_on_the_way_out_are_no_recovery(outcome):
    """All ranks agree on the end of a step, which may be a later one."""
    summary = told_to_leave(more_steps=2, outcome=outcome)
    assert summary["exit_code"] == 5
    assert undecided(summary) == {"code": "left_in_order", "step": 27, "saved_step": 27}
    assert summary["incidents"][0]["recovery_seconds"] is None


def test_a_job_that_is_started_again_has_recovered():
    summary = told_to_leave(again=True, outcome="completed")
    assert (summary["verdict"], summary["steps_lost"]) == ("pass", 0)
    assert summary["incidents"][0]["recovered"] is True


@pytest.mark.parametrize(
    "knobs",
    [{"codes": (1, 0)}, {"codes": (0, -15)}, {"save": False}, {"asks_to_leave": False}],
    ids=["one raises", "one is killed", "nothing saved", "not asked"],
)
def test_whoever_does_not_leave_in_order_has_not_survived(knobs):
    summary = told_to_leave(**knobs)
    assert summary["verdict"] == "fail"
    assert "job_died" in codes_of(summary)


def test_a_job_that_came_to_its_end_did_not_leave():
    summary = told_to_leave(more_steps=1, outcome="completed", steps=26)
    assert summary["incidents"][0]["undecided"] is None
    (reason,) = summary["reason_codes"]
    assert (reason["code"], reason["incident"], reason["completed"]) == ("ended_too_early", 0, True)


@pytest.mark.parametrize(("pid", "is_named"), [(5, True), (6, False)], ids=["the command itself", "another"])
def test_a_command_that_ends_with_its_launcher_says_that_nothing_started_it_again(pid, is_named):
    log = Log(("kill-node", "node=0"))
    log.tell("process_started", role="launcher", started_pid=5)
    log.attempt(1, 1, 24)
    log.inject(is_loss=True, ranks=[0, 1], processes=[{"role": "launcher", "pid": pid}])
    log.tell("job_failed", reason="the command was killed by SIGKILL", exit=-9)
    (died,) = (one for one in summarized(log.end("failed"))["reason_codes"] if one["code"] == "job_died")
    assert ("launcher_ended_by" in died) is is_named
    if is_named:
        assert died["launcher_ended_by"] == {"incident": 0, "fault": "kill-node", "target": "node=0"}


# ---- damage that is read by nobody ----

LATENT = {"is_latent": True, "goes_on": True}


def damaged(*, kill=True, again=True, save=None, undo=False, outcome="completed", latent=None):
    log = Log((DAMAGE, None), *([("kill-process", "rank=1")] if kill else []))
    log.attempt(1, 1, 24)
    log.save(1, 20)
    log.inject(**(LATENT if latent is None else latent))
    log.steps(1, 25, 34)
    if save is not None:
        log.save(1, save)
    if undo:
        log.undo()
    if kill:
        log.inject(1, step=35, is_loss=True, ranks=[1])
        log.leave(1, (1, -9))
        if again:
            log.attempt(2, 11, 60)
            log.leave(2)
    else:
        log.steps(1, 35, 60)
        log.leave(1)
    return summarized(log.end(outcome))


def test_damage_that_nobody_can_have_read_is_inconclusive():
    summary = damaged(kill=False)
    assert summary["exit_code"] == 5
    assert undecided(summary) == {"code": "never_read", "what": "checkpoint"}
    (incident,) = summary["incidents"]
    assert (incident["verified"], incident["recovered"], incident["recovery_seconds"]) == (True, None, None)
    assert summary["unrecovered_incidents"] == 0


def test_damage_that_a_restart_read_is_one_story_with_it():
    summary = damaged()
    assert summary["verdict"] == "pass", summary["reasons"]
    damage, kill = summary["incidents"]
    assert damage["recovery_seconds"] == kill["recovery_seconds"] == pytest.approx(RESTART + STEP)
    assert damage["recovery_attempt"] == kill["recovery_attempt"] == 2


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"undo": True}, {"code": "put_back", "what": "checkpoint"}),
        ({"save": 30}, {"code": "newer_saved", "what": "checkpoint", "saved_step": 30}),
    ],
)
def test_damage_that_the_restart_did_not_meet(knobs, why):
    summary = damaged(**knobs)
    assert summary["exit_code"] == 5
    assert undecided(summary) == why
    assert summary["incidents"][1]["recovered"] is True


def test_a_part_of_the_same_checkpoint_that_is_told_late_is_no_newer_one():
    assert damaged(save=20)["verdict"] == "pass"


def test_a_job_that_does_not_come_up_on_what_was_damaged_fails():
    summary = damaged(again=False, outcome="failed")
    assert summary["verdict"] == "fail"
    log = Log((DAMAGE, None), ("kill-process", "rank=1"))
    log.attempt(1, 1, 24)
    log.save(1, 20)
    log.inject(**LATENT)
    log.steps(1, 25, 34)
    log.inject(1, step=35, is_loss=True, ranks=[1])
    log.leave(1, (1, -9))
    log.attempt(2, 1, 0)
    log.leave(2, (1, 1))
    assert summarized(log.end("failed"))["verdict"] == "fail"


def test_of_an_older_log_nothing_is_known_of_that():
    """It does not say what is latent."""
    assert damaged(kill=False, latent={"goes_on": True})["verdict"] == "pass"


# ---- the same of a job of our runtime ----


def own(*told, evidence=None):
    """A job whose damaged checkpoint is of step 20; `told` follows the damage."""
    log = Log((DAMAGE, None), ("kill-job", "all"), runtime="mecefo")
    log.tell("layout", epoch=1, members=[0, 1], reason="start")
    log.tell("regrouped", epoch=1, members=[0, 1], reason="start")
    log.steps(1, 1, 24)
    log.inject(**LATENT, evidence=evidence or {"summary": "cut", "step": 20})
    log.steps(1, 25, 29)
    if told:
        log.inject(1, step=30, is_loss=True, ranks=[0, 1])
    for kind, step, fields in told:
        log.at += STEP
        log.tell(kind, step=step, **fields)
    first = 30 if not told else (told[-1][1] or 20) + 1
    log.steps(2, first, 60)
    return summarized(log.end())


def regrouped(rung, step, **passed_over):
    more = {"epoch": 2, "members": [0, 1], "reason": "loss", "rung": rung, "passed_over": passed_over}
    return ("regrouped", step, more)


LOST = ("detected", 30, {"lost": [0, 1], "how": "supervisor"})


@pytest.mark.parametrize(
    ("told", "is_read"),
    [
        ((), False),
        ((LOST, regrouped("peer", None)), False),
        ((LOST, regrouped("snapshot", 28)), False),
        ((LOST, ("checkpoint_restored", 10, {}), regrouped("checkpoint", 10)), True),
        ((LOST, regrouped("start", 0, checkpoint="it is damaged")), True),
        ((LOST, ("checkpoint_restored", 28, {}), regrouped("checkpoint", 28)), False),
    ],
    ids=["no restart", "from peers", "from snapshots", "from an older one", "from nothing", "from a newer one"],
)
def test_a_job_of_ours_says_what_it_read(told, is_read):
    summary = own(*told)
    damage = summary["incidents"][0]
    assert damage["recovered"] is (True if is_read else None)
    assert ("recovery_undecided" in codes_of(summary)) is not is_read
    if not is_read:
        assert undecided(summary)["what"] == "checkpoint"


def test_an_effect_that_came_later_is_what_the_job_recovers_from():
    """A slow save of step 30, injected in step 25, of which the ranks died."""
    log = Log(("slow-checkpoint", "rank=0"))
    log.attempt(1, 1, 24)
    log.tell("injected", step=25, incident=0, fault="slow-checkpoint", ranks=[0], goes_on=True)
    log.steps(1, 25, 30)
    asleep = log.at
    log.at += 4.0
    log.leave(1, (1, 1))
    log.tell("verified", step=25, incident=0, evidence={"summary": "died of it"}, took_effect_monotonic=asleep)
    log.attempt(2, 21, 60)
    log.leave(2)
    (incident,) = summarized(log.end())["incidents"]
    assert incident["recovered"] is True
    assert incident["recovery_seconds"] == pytest.approx(4.0 + RESTART + STEP)
