import json
import subprocess
import sys

import pytest

from benchmarks._machine import Machine
from benchmarks.soak.__main__ import Result, report, to_document
from benchmarks.soak.driver import Loss, Record
from benchmarks.soak.judge import check_stop, find_crashes, judge, recovery_seconds
from benchmarks.soak.knowledge import Knowledge
from benchmarks.soak.plan import FATAL_EVERY, FATAL_KINDS, KINDS, SINGLE_REPLICA, SINGLE_REPLICA_KINDS, plan_run
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.benchmarks.limits import TIMEOUT_SECONDS
from tests.planning import layout_of

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")


def event(kind, seconds=0.0, source="coordinator", rank=None, step=None, **fields):
    return Event(kind, source, seconds, seconds, 1, rank=rank, step=step, fields=fields)


def plan_of(strategy="exact"):
    return next(
        plan
        for plan in (plan_run(0, number, quick=True) for number in range(100))
        if plan.strategy == strategy and not plan.is_fatal and str(plan.shape) == "2x2 D=2 P=2"
    )


def completed(plan, *, loss=lambda step: 5.0, left_out=(), samples=None):
    """The record of a run that lost nobody."""
    job = plan.job()
    layout = layout_of(plan.strategy, job.cluster(), range(job.cluster().num_ranks))
    events = [event("layout", 0.0, layout=to_json(layout))]
    for step in range(1, plan.num_steps + 1):
        if step not in left_out:
            used = samples_of_step(step, job.samples_per_step)
            fields = {"epoch": 1, "loss": loss(step), "tokens": 1, "samples": samples or len(used)}
            times = {"began_monotonic": step, "committed_monotonic": step + 0.5}
            events.append(event("step_committed", step, step=step, samples_checksum=checksum(used), **fields, **times))
    for rank in layout.ranks():
        sums = dict.fromkeys(layout.units(rank), 7)
        events.append(event("rank_finished", 999.0, "rank", rank=rank, step=plan.num_steps, checksums=sums))
    return Record(outcome="completed", events=events)


@pytest.mark.unit
def test_the_same_seed_draws_the_same_run_and_another_one_another():
    assert plan_run(3, 5, quick=False) == plan_run(3, 5, quick=False)
    assert plan_run(3, 5, quick=False).blows != plan_run(4, 5, quick=False).blows


@pytest.mark.unit
def test_every_kind_of_loss_is_drawn_and_none_that_the_shape_cannot_bear():
    plans = [plan_run(0, number, quick=False) for number in range(120)]
    assert {blow.name for plan in plans for blow in plan.blows} == {*KINDS, *FATAL_KINDS}
    assert [plan.number for plan in plans if plan.is_fatal] == list(range(FATAL_EVERY - 1, 120, FATAL_EVERY))
    single = [blow.name for plan in plans if plan.shape == SINGLE_REPLICA and not plan.is_fatal for blow in plan.blows]
    assert set(single) == set(SINGLE_REPLICA_KINDS)


@pytest.mark.unit
def test_nobody_is_affected_whose_loss_the_job_cannot_bear():
    plan = plan_of()
    layout = layout_of("exact", plan.job().cluster(), range(4))
    known = Knowledge()
    known.feed(event("layout", 1.0, layout=to_json(layout)))
    known.feed(event("regrouped", 2.0, members=[0, 1, 2, 3]))
    holders = known.holders("head")
    assert len(holders) == 2 and known.can_lose(holders[:1]) and not known.can_lose(holders)
    known.inject(holders[:1], 3.0)
    assert not known.can_lose(holders[1:])
    # An epoch that was laid out before the blow does not bring the lost one back; a later one does.
    known.feed(event("regrouped", 3.5, members=[0, 1, 2, 3]))
    assert not known.can_lose(holders[1:])
    known.feed(event("layout", 4.0, layout=to_json(layout)))
    known.feed(event("regrouped", 5.0, members=[0, 1, 2, 3]))
    assert known.can_lose(holders[1:])


@pytest.mark.unit
def test_a_sound_run_passes_and_each_flaw_is_named():
    plan = plan_of()
    reference = dict.fromkeys(range(1, plan.num_steps + 1), 5.0)
    assert judge(plan, completed(plan), reference) == []
    flaws = {
        "steps [7] were never committed": completed(plan, left_out=(7,)),
        "step 1 used 3 samples of 4": completed(plan, samples=3),
        "the loss deviates from the fault-free run's from step 9 on": completed(
            plan, loss=lambda step: 5.0 if step < 9 else 5.001
        ),
    }
    for text, record in flaws.items():
        assert any(violation.startswith(text) for violation in judge(plan, record, reference)), text
    record = completed(plan)
    record.events[-1].fields["checksums"]["head"] = 8
    record.leftovers.append("pid 5")
    violations = judge(plan, record, reference)
    assert "left behind: pid 5" in violations
    assert any("head differs among its holders" in violation for violation in violations)
    hung = Record(outcome="hung: no step", events=[])
    assert judge(plan, hung, reference) == ["hung: no step"]


@pytest.mark.unit
def test_a_process_that_nobody_affected_has_crashed():
    def exited(rank, code, seconds):
        return event("process_exited", seconds, "supervisor", role="rank", exited_rank=rank, exited_pid=9, exit=code)

    losses = [Loss("rank", "rank 1", (1,), 3, 1.0)]
    events = [exited(1, -9, 1.1), exited(2, -9, 1.2), exited(3, 1, 1.3), event("job_ended", 2.0), exited(0, -9, 2.1)]
    crashes = find_crashes(events, losses, is_fatal=False)
    assert crashes == ["rank 2 (pid 9) exited with -9", "rank 3 (pid 9) exited with 1"]


@pytest.mark.unit
def test_a_job_that_lost_too_much_must_say_so():
    reason = "no living rank holds head: every holder was lost at once, and there is no checkpoint"
    assert check_stop(Record(outcome="failed", events=[event("job_failed", reason=reason)])) == []
    assert check_stop(Record(outcome="completed")) != []
    assert (
        check_stop(Record(outcome="failed", events=[event("job_failed", reason="a bug of the runtime: what was lost")]))
        != []
    )


@pytest.mark.unit
def test_recovery_ends_with_the_first_step_that_began_after_the_blow():
    record = completed(plan_of())
    assert recovery_seconds(record.events, [Loss("rank", "rank 1", (1,), 3, 3.2)]) == [pytest.approx(1.3)]
    assert recovery_seconds(record.events, [Loss("coordinator", "coordinator", (), 3, 3.2)]) == []


@pytest.mark.unit
def test_the_report_tells_how_to_repeat_what_failed(tmp_path):
    fine = Result(0, "run-9-000", "s", "ndb", False, (("rank", "rank 1"),), (), 1, 3, (0.1,), None, 1.0, ())
    bad = Result(1, "run-9-001", "s", "exact", False, (("node", "node 1"),), (), 0, 2, (), 2e-7, 1.0, ("hung",))
    text = report([fine, bad], MACHINE, 9, tmp_path)
    assert f"{tmp_path / 'run-9-001'} (--seed 9 --only 1)" in text
    assert "failed: 1 of 2 runs" in text and "losses: 2;" in text
    document = to_document([fine, bad], MACHINE, 9)
    assert (document["num_losses"], document["num_failed"]) == (2, 1)
    json.dumps(document, allow_nan=False)


@pytest.mark.nightly
def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.soak", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["num_losses"] >= 6 and document["num_failed"] == 0
    assert all((tmp_path / run["name"] / "events.jsonl").exists() for run in document["runs"])
