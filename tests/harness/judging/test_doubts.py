"""Logs that lost lines, or say two things at once: they prove nothing, neither for nor against the job."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from chaos.experiment.experiment import Experiment, experiment_hash, to_yaml
from harness.judging.stored import judge
from harness.run.execute import write_reports
from harness.store.runs import list_runs, new_run_folder
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit

HARD = "throughput_drop <= 0.1%"
EXPERIMENT = Experiment.model_validate(
    {"name": "stored", "seed": 7, "gates": [HARD, {"gate": "steps_lost <= 3", "abort_on_fail": True}]}
)


def counted(events: list[Event]) -> list[Event]:
    """The events with the number of them in the last, as a run writes it."""
    return [shifted(e, num_events=len(events)) if e.kind == "run_ended" else e for e in events]


def of_experiment(experiment: Experiment = EXPERIMENT) -> list[Event]:
    """A whole log of an experiment that fails one of its gates."""
    said = {
        "experiment": experiment.model_dump(mode="json"),
        "experiment_hash": experiment_hash(experiment),
        "gates": [str(gate) for gate in experiment.gates],
        "seed": experiment.seed,
    }
    return counted([shifted(e, **said) if e.kind == "run_started" else e for e in run(baseline=False)])


@pytest.fixture
def folder(tmp_path):
    """A stored run that failed a gate."""
    folder = new_run_folder(tmp_path, "stored")
    (folder / "experiment.yaml").write_text(to_yaml(EXPERIMENT), encoding="utf-8")
    write(folder, of_experiment())
    assert write_reports(folder).verdict == "fail"
    assert judge(folder)[0].verdict == "fail"
    return folder


def write(folder, events):
    """The log of these events; None is a line that cannot be read."""
    lines = ("no event" if event is None else event.to_json() for event in events)
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def assert_doubted(folder, words):
    """Inconclusive for everyone, no gate has an answer, and the first reason says why."""
    summary, _ = judge(folder)
    assert (summary.verdict, summary.exit_code) == ("inconclusive", 5)
    assert words in " ".join(summary.reasons)
    assert all(gate.passed is None for gate in summary.gates)
    assert judge(folder, gates=())[0].verdict == "inconclusive"
    return summary


def edited(**said):
    return lambda events: [shifted(e, **said) if e.kind == "run_started" else e for e in events]


OTHER = EXPERIMENT.model_copy(update={"gates": []})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda log: log[1:], "the log has no run_started: its head is missing", id="no-head"),
        pytest.param(lambda log: log[1:2] + log[:1] + log[2:], "does not begin with run_started", id="moved"),
        pytest.param(edited(gates=[]), "run_started names the gates none, and its experiment", id="gates"),
        pytest.param(edited(seed=8), "names the seed 8, its experiment 7", id="seed"),
        pytest.param(edited(experiment_hash="0123456789abcdef"), "the experiment hash is 0123", id="hash"),
        pytest.param(lambda log: log[:1] + log, "events of 2 runs", id="head-twice"),
        pytest.param(lambda log: log + log, "events of 2 runs", id="log-twice"),
        pytest.param(
            lambda log: edited(
                gates=[], experiment=OTHER.model_dump(mode="json"), experiment_hash=experiment_hash(OTHER)
            )(log),
            "the stored summary was judged by the gates",
            id="all-of-the-head",
        ),
        pytest.param(lambda log: [None, *log[1:]], "1 line of the log cannot be read (line 1)", id="head-unreadable"),
        pytest.param(lambda log: log[:40] + log[43:], "other lines are missing", id="middle"),
    ],
)
def test_a_log_whose_parts_contradict_each_other_proves_nothing(folder, damage, words):
    write(folder, damage(of_experiment()))
    assert_doubted(folder, words)
    (entry,) = list_runs(folder.parent.parent)
    assert entry.verdict == "inconclusive"


def test_a_bare_log_without_its_head_proves_nothing(folder):
    for name in ("summary.json", "experiment.yaml"):
        (folder / name).unlink()
    assert judge(folder)[0].verdict == "fail"
    write(folder, of_experiment()[1:])
    assert_doubted(folder, "the log has no run_started")


def test_another_experiment_beside_the_log_is_a_contradiction(folder):
    path = folder / "experiment.yaml"
    # Read and written by another hand, it says the same.
    path.write_text("# mine\n" + yaml.safe_dump(yaml.safe_load(path.read_text())))
    assert judge(folder)[0].verdict == "fail"
    path.write_text(to_yaml(OTHER))
    assert_doubted(folder, "experiment.yaml beside the log is another experiment than the log's: they differ in gates")
    path.write_text("name: [")
    assert judge(folder)[0].verdict == "fail"


def test_the_summary_of_another_run_is_a_contradiction(folder):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    for key, value in (("seed", 8), ("experiment_hash", "0123456789abcdef"), ("gates", [])):
        path.write_text(json.dumps({**summary, key: value}))
        assert_doubted(folder, "the stored summary")
    for older in ({}, {"verdict": "fail"}, {**summary, "gates": [{**summary["gates"][0]}, {**summary["gates"][1]}]}):
        path.write_text(json.dumps(older))
        assert judge(folder)[0].verdict == "fail"
    path.write_text("half of a")
    assert judge(folder)[0].verdict == "fail"


@pytest.mark.parametrize("left_out", [("num_events",), ("experiment_hash",), ("gates",), ("seed",), ("experiment",)])
def test_what_an_older_log_does_not_tell_is_no_contradiction(left_out):
    def without(event):
        return replace(event, fields={key: value for key, value in event.fields.items() if key not in left_out})

    assert summarized(run())["verdict"] == "pass"
    assert summarized([without(event) for event in counted(run())])["verdict"] == "pass"
    # A hash that was made in another way has another form.
    assert summarized([shifted(e, experiment_hash="v2:0a") if e.kind == "run_started" else e for e in run()])[
        "verdict"
    ] == ("pass")


def step(number: int) -> Callable[[Event], bool]:
    return lambda event: event.kind == "step_committed" and event.step == number and event.job == "main"


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_step_whose_line_is_missing_is_not_lost(is_counted):
    whole = counted(run()) if is_counted else run()
    summary = summarized([event for event in whole if not step(44)(event)])
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    told = "other lines are missing" if is_counted else "has no step_committed of step 44"
    assert told in " ".join(summary["reasons"])


def test_a_line_that_cannot_be_read_makes_no_failure(folder):
    whole = counted(run(baseline=False))
    write(folder, whole)
    for name in ("summary.json", "experiment.yaml"):
        (folder / name).unlink()
    before = to_json(write_reports(folder))
    assert [entry.verdict for entry in list_runs(folder.parent.parent)] == ["pass"]
    (folder / "summary.json").unlink()
    index = next(index for index, event in enumerate(whole) if step(44)(event))
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    for damaged in (b"\x00" * 40 + b"\n", lines[index][:50] + b"\n"):
        (folder / "events.jsonl").write_bytes(b"".join([*lines[:index], damaged, *lines[index + 1 :]]))
        (folder / "summary.json").write_text(json.dumps(before))
        assert [entry.verdict for entry in list_runs(folder.parent.parent)] == ["inconclusive"]
        (folder / "summary.json").unlink()
        summary = assert_doubted(folder, f"1 line of the log cannot be read (line {index + 1})")
        assert not any("failed" in reason for reason in summary.reasons)
    # Half a line at the end is where the run was cut off.
    (folder / "events.jsonl").write_bytes(b"".join(lines[: index + 1])[:-20])
    assert "the log was cut off: the end of the run is missing" in judge(folder)[0].reasons
    (folder / "summary.json").write_text(json.dumps(before))
    assert [entry.verdict for entry in list_runs(folder.parent.parent)] == ["inconclusive"]


def test_what_the_lines_that_are_there_say_stays():
    """Of missing lines comes no death of a job, no loss that is not finite, and nothing that was left behind."""
    for knobs, verdict in (
        ({"residue": (4711,)}, "dirty"),
        ({"job_fails": True, "faults": (Fault(recovers=False),)}, "fail"),
    ):
        assert summarized(run(**knobs), unreadable=[3])["verdict"] == verdict
    poisoned = [shifted(e, loss=float("nan")) if step(44)(e) else e for e in run(baseline=False)]
    assert summarized(poisoned, unreadable=[3])["verdict"] == "fail"


def test_a_fault_after_which_no_step_is_known_is_not_said_to_have_failed():
    events = run(faults=(Fault(recovers=False),))
    assert summarized(events)["verdict"] == "fail"
    summary = summarized(events, unreadable=[3])
    assert summary["verdict"] == "inconclusive"
    assert summary["incidents"][0]["recovered"] is None


def test_a_log_without_its_plan_proves_nothing():
    assert "no incidents_planned" in " ".join(
        summarized([event for event in run() if event.kind != "incidents_planned"])["reasons"]
    )
