"""Whether two stored runs are of the same experiment: a run, its replay, and a replay of that are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment.experiment import experiment_hash
from chaos.experiment.reading import from_mapping
from chaos.plan.replay import Recorded, explicit, explicit_faults
from chaos.plan.schedule import make_plan
from harness.comparison.figures import DECIDING
from harness.comparison.same_experiment import drawn_from, other_experiment
from harness.comparison.sample import RunSet, Sample
from harness.comparison.stored import find_samples
from harness.comparison.verdicts import judge_against
from harness.run.execute import write_reports
from harness.store.runs import new_run_folder
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.json_values import to_json
from tests.harness import synthetic
from tests.harness.comparison.samples import run_set, sample

pytestmark = pytest.mark.unit

COMMAND = {"runtime": "command", "command": ["python", "train.py"], "gpus_per_node": 2}
# The step at which a fault that comes at a time was injected.
STEP_OF_A_TIME = 42


def planned_events(experiment: Mapping[str, Any], started_in: str = "/work") -> list[Event]:
    """The head of the log of a run of `experiment`: what was asked for, what was drawn, and what was injected when."""
    read = from_mapping(experiment)
    incidents = [to_json(incident.planned()) for incident in make_plan(read, read.cluster()).incidents]

    def event(kind: str, step: int | None = None, **fields: Any) -> Event:
        return Event(kind, "conductor", 0.0, 0.0, 1, job=MAIN_JOB, step=step, fields=fields)

    return [
        event("run_started", experiment=read.model_dump(mode="json"), experiment_hash=experiment_hash(read)),
        event("incidents_planned", incidents=incidents),
        event("job_started", started_in=started_in),
        *(event("injected", one["step"] or STEP_OF_A_TIME, incident=one["incident"]) for one in incidents),
    ]


def replay_of(events: list[Event], only: tuple[int, ...] = ()) -> dict[str, Any]:
    """The experiment that `chaos replay` runs."""
    recorded = Recorded.of(events)
    return explicit(recorded, explicit_faults(recorded, only), "again")


def sample_from(events: list[Event]) -> Sample:
    started = events[0].fields
    return sample(
        1.0,
        experiment=started["experiment"],
        experiment_hash=started["experiment_hash"],
        drawn=drawn_from(events),
    )


FAULTS: list[dict[str, Any]] = [
    {"kind": "kill-node", "at": "step=20"},
    {"kind": "kill-node", "at": "step=70", "repair": "10steps"},
    {"kind": "kill-process", "on": "random:2", "at": "step=30,phase=backward", "repair": "none"},
    {"kind": "kill-process", "on": "role=coordinator", "at": "time=4s"},
    {"kind": "pause-process", "at": "time=3s", "for": "2s"},
    {"kind": "bit-flip", "at": "step=33"},
    {"kind": "slow-link", "at": "step=40", "for": "10s", "delay": "50ms"},
    {"kind": "slow-rank", "rate": "2/min", "count": 2, "for": "1s"},
]
schedules = st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4)


@given(schedules, st.integers(0, 5))
def test_a_replay_and_a_replay_of_it_are_the_same_experiment(faults, seed):
    try:
        events = planned_events({"name": "x", "seed": seed, "job": {"steps": 80}, "faults": faults})
        once = planned_events(replay_of(events))
        twice = planned_events(replay_of(once))
    except UsageError:
        # These faults cannot be combined: one of them takes the target of another down.
        reject()
    for one, other in ((once, events), (events, once), (twice, events), (twice, once)):
        assert other_experiment(sample_from(one), sample_from(other)) is None


def test_a_replay_of_a_profile_is_the_same_experiment():
    events = planned_events({"name": "x", "job": {"steps": 300}, "profile": "llama3:4"})
    assert other_experiment(sample_from(planned_events(replay_of(events))), sample_from(events)) is None


def test_a_command_is_the_same_wherever_it_was_replayed_from():
    events = planned_events({"name": "x", "job": COMMAND, "faults": [{"kind": "kill-process", "at": "step=10"}]})
    again = planned_events(replay_of(events), started_in="/elsewhere")
    assert other_experiment(sample_from(again), sample_from(events)) is None
    moved = planned_events({**events[0].fields["experiment"], "name": "y"}, started_in="/elsewhere")
    assert other_experiment(sample_from(moved), sample_from(events)) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"faults": [{"kind": "kill-node", "on": "node=0", "at": "step=21"}]}, 'faults[0].at: "step=21", not "step=20'),
        ({"faults": [{"kind": "kill-node", "on": "node=1", "at": "step=20"}]}, 'faults[0].on: "node=1", not "node='),
        ({"faults": [{"kind": "kill-node", "on": "node=0", "at": "step=20", "draw": 5}]}, "faults[0].draw: 5, not 0"),
        ({"faults": []}, 'faults[0].kind: null, not "kill-node"'),
        ({"seed": 1}, "seed: 1, not 0"),
        ({"job": {"steps": 81}}, "job.steps: 81, not 80"),
    ],
)
def test_what_was_drawn_otherwise_is_another_experiment(change, named):
    written = {"name": "x", "job": {"steps": 80}, "faults": [{"kind": "kill-node", "at": "step=20"}]}
    events = planned_events(written)
    found = other_experiment(sample_from(planned_events({**written, **change})), sample_from(events))
    assert found is not None and named in found


def test_a_replay_of_some_of_the_incidents_is_another_experiment():
    events = planned_events({"name": "x", "job": {"steps": 80}, "faults": FAULTS[:3]})
    found = other_experiment(sample_from(planned_events(replay_of(events, only=(1,)))), sample_from(events))
    assert found is not None and "faults[1]" in found


def test_without_a_plan_the_experiments_are_compared_as_written():
    events = planned_events({"name": "x", "job": {"steps": 80}, "faults": [{"kind": "kill-node", "at": "step=20"}]})
    again = planned_events(replay_of(events))
    assert drawn_from(events[:1]) == {}
    damaged = [events[0], replace(events[1], fields={"incidents": [{"incident": "x"}, 3]})]
    for cut in (events[:1], damaged):
        found = other_experiment(sample_from(again), sample_from(cut))
        assert found is not None and "faults[0].draw" in found


def test_a_set_keeps_what_was_drawn():
    events = planned_events({"name": "x", "job": {"steps": 80}, "faults": [{"kind": "kill-node", "at": "step=20"}]})
    (kept,) = RunSet.parse(to_json(run_set(sample_from(events)))).samples
    assert other_experiment(sample_from(planned_events(replay_of(events))), kept) is None
    # As a set of an earlier version has it.
    old = to_json(run_set(sample_from(events)))
    del old["samples"][0]["drawn"]
    assert RunSet.parse(old).samples[0].drawn == {}


def store(out: Path, experiment: Mapping[str, Any], name: str) -> None:
    """A run of 60 steps in which node 1 is killed, stored as the run of `experiment`."""
    head = {event.kind: event.fields for event in planned_events(experiment)}
    events = [
        replace(event, fields={**event.fields, **head[event.kind]})
        if event.job == MAIN_JOB and event.kind in ("run_started", "incidents_planned")
        else event
        for event in synthetic.run(baseline=False)
    ]
    folder = new_run_folder(out, name)
    (folder / "events.jsonl").write_text("".join(f"{event.to_json()}\n" for event in events))
    write_reports(folder)


def test_stored_runs_are_compared(tmp_path):
    fault = {"kind": "kill-node", "at": "step=20,phase=backward", "repair": "15steps"}
    original = {"name": "first", "seed": 7, "job": {"steps": 60}, "faults": [fault]}
    events = planned_events(original)
    store(tmp_path, original, "first")
    store(tmp_path, replay_of(events), "again")
    store(tmp_path, {**original, "faults": [{**fault, "at": "step=20"}]}, "other")
    first, again, other = (find_samples(tmp_path, name) for name in ("first", "again", "other"))
    assert first[0].experiment_hash != again[0].experiment_hash
    found = judge_against(again, first, DECIDING, 0.05)
    assert (found.verdict.exit_code, len(found.samples)) == (0, 1)
    refused = judge_against(other, first, DECIDING, 0.05)
    assert refused.verdict.exit_code == 5
    assert 'faults[0].at: "step=20", not "step=20,phase=backward"' in refused.verdict.reasons[0]
