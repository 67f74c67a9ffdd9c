"""Why an incident never fired: what the message names is so, and what it advises fires."""

import shlex
from dataclasses import replace

import pytest

from chaos.in_process.protocol import Came
from chaos.language.target import Target
from chaos.language.trigger import Trigger
from mecefo_runtime.system.events import Event
from tests.chaos.injection.test_injector import Stage, incident

pytestmark = pytest.mark.unit

OF_EVERY_STEP = ("data", "forward", "backward", "optimizer", "commit")


def step_committed(step):
    return Event("step_committed", "rank", 0.0, 0.0, 1, step=step)


def train(stage, *, saving=(), steps=100, every=20, ranks=(0, 1)):
    """A job of which the ranks `saving` save at every so many steps."""
    for rank in ranks:
        stage.connect(rank)
    for step in range(1, steps + 1):
        for rank in ranks:
            for phase in OF_EVERY_STEP if step <= 3 else ():
                report(stage, rank, Came(step, phase, is_steady=step == 3))
            if rank in saving and step % every == 0:
                report(stage, rank, Came(step, "checkpoint"))
        stage.injector.on_event(step_committed(step))


def report(stage, rank, message):
    stage.injector.on_message(stage._sessions[rank], message)


def planned(at, *, on=(0,), **more):
    return replace(incident(ranks=on, trigger=Trigger.parse(at)), **more)


def why(folder, plan, **job):
    stage = Stage(folder, plan)
    stage.play(lambda: train(stage, **job))
    (kind,) = {kind for kind, _, _ in stage.events if kind in ("unverified", "not_due")}
    return stage.fields(kind)


@pytest.mark.parametrize(
    ("at", "on", "saving", "code", "text"),
    [
        (
            "step=61,phase=checkpoint",
            (0,),
            (0,),
            "phase_in_other_steps",
            "rank 0 has no checkpoint phase in step 61; it came every 20 steps from 20 to 100: "
            "write --at step=60,phase=checkpoint",
        ),
        (
            "step=60,phase=checkpoint",
            (1,),
            (0,),
            "phase_on_other_ranks",
            "rank 1 saves no checkpoint; rank 0 does, every 20 steps from 20 to 100: "
            "write --on rank=0 --at step=60,phase=checkpoint",
        ),
        (
            "step=7,phase=reduce",
            (0, 1),
            (0,),
            "phase_never_came",
            "no reduce phase came in the job; the phases seen are data, forward, backward, optimizer, commit and "
            "checkpoint",
        ),
        (
            "step=200,phase=checkpoint",
            (0,),
            (0,),
            "job_ended_before",
            "the job ended before rank=0 came to step=200,phase=checkpoint",
        ),
        (
            "step=60,phase=checkpoint",
            (7,),
            (0,),
            "rank_absent",
            "rank=7 was not in the job when the job reached step=60,phase=checkpoint",
        ),
    ],
)
def test_it_names_where_the_phase_came(tmp_path, at, on, saving, code, text):
    fields = why(tmp_path, planned(at, on=on), saving=saving)
    assert (fields["code"], fields["reason"]) == (code, f"never fired: {text}")


@pytest.mark.parametrize(("at", "on"), [("step=61,phase=checkpoint", (0,)), ("step=61,phase=checkpoint", (1,))])
def test_what_it_advises_fires(tmp_path, at, on):
    fields = why(tmp_path, planned(at, on=on), saving=(0,))
    options = dict(zip(*[iter(shlex.split(fields["advice"]))] * 2, strict=True))
    ranks = Target.parse(options["--on"]).numbers("rank") if "--on" in options else on
    trigger = Trigger.parse(options["--at"])
    assert fields["phase_steps"] == [[step, step] for step in range(20, 101, 20)]
    assert fields.get("phase_ranks", list(on)) == [0]
    (folder := tmp_path / "again").mkdir()
    stage = Stage(folder, planned(options["--at"], on=tuple(ranks)))
    stage.play(lambda: train(stage, saving=(0,)), lambda: stage.arrive(ranks[0], trigger.step, trigger.phase))
    assert "verified" in stage.trace


def test_steps_that_are_many_and_irregular_are_bounded(tmp_path):
    def train_and_save(stage):
        train(stage)
        for step in (7, 11, 30, 31, 55, 56, 57, 90):
            report(stage, 0, Came(step, "checkpoint"))

    stage = Stage(tmp_path, planned("step=60,phase=checkpoint"))
    stage.play(lambda: train_and_save(stage))
    assert (
        "it came in steps 7, 11, 30 to 31 and others, up to 90: write --at step=57,"
        in stage.fields("unverified")["reason"]
    )


def test_what_chance_planned_is_explained_without_advice(tmp_path):
    fields = why(tmp_path, planned("step=61,phase=checkpoint", may_be_left_out=True), saving=(0,))
    assert fields["reason"] == "rank 0 has no checkpoint phase in step 61; it came every 20 steps from 20 to 100"
    assert "advice" not in fields


def test_a_rank_that_had_left_by_then_was_not_in_the_job(tmp_path):
    stage = Stage(tmp_path, planned("step=6,phase=backward", on=(1,)))

    def leave():
        stage.connect(0)
        stage.connect(1)
        for step in (1, 2, 3):
            report(stage, 1, Came(step, "backward", is_steady=step == 3))
        stage.injector.on_event(step_committed(5))
        stage.injector.closed(stage._sessions[1])
        stage.injector.on_event(step_committed(6))

    stage.play(leave)
    fields = stage.fields("unverified")
    assert fields["code"] == "rank_absent"
    assert fields["reason"] == "never fired: rank=1 was not in the job when the job reached step=6,phase=backward"


def test_events_of_saves_explain_it_where_agents_report_no_phases(tmp_path):
    stage = Stage(tmp_path, planned("step=61,phase=checkpoint", on=(1,)))

    def train_without_reports():
        stage.connect(0)
        stage.connect(1)
        for step in (20, 40):
            stage.injector.on_event(Event("checkpoint_written", "rank", 0.0, 0.0, 1, step=step, rank=0, fields={}))
        stage.injector.on_event(step_committed(70))

    stage.play(train_without_reports)
    assert stage.fields("unverified")["reason"].endswith("write --on rank=0 --at step=40,phase=checkpoint")
