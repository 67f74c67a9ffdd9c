"""What is served is what both formats and Prometheus' own checks take, with the names that are promised."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from harness.judging.summarize import summarize
from harness.judging.summary import read_summary
from manual.metrics import with_tables
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.training.exporter import RankFigures
from tests.harness.exporter.scrape import registry_of, samples
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[3] / "docs/reference/metrics.md"


def telemetry():
    return Event(
        "telemetry", "injector", 0, 1500.0, 1, fields={"rank": 3, "xid": 79, "ecc_sbe": 5, "ecc_dbe": 1, "record": ""}
    )


def whole_run():
    events = [*run(gates=("steps_lost == 0", "throughput_drop <= 1%", "twin_loss < 1")), telemetry()]
    checkpoint = Event("checkpoint_written", "rank", 0, 1003.0, 1, rank=0, step=10, fields={"blocking_seconds": 0.1})
    return [*events[:40], checkpoint, *events[40:]]


def test_a_finished_run_reads_as_its_summary():
    events = whole_run()
    judged = summarize(events)
    summary = to_json(judged)
    found = samples(registry_of(events, judged))
    assert found["training_step", ()] == found["training_steps_total", ()] == 60
    assert found["training_tokens_total", ()] == 60 * 4096
    assert found["training_loss", ()] == pytest.approx(events[-1].fields.get("loss", summary["final_loss"]), rel=0.1)
    assert found["training_running", ()] == 0
    assert found["chaos_faults_total", (("fault", "kill-node"), ("outcome", "verified"))] == 1
    assert found["chaos_faults_total", (("fault", "kill-node"), ("outcome", "unverified"))] == 0
    (incident,) = summary["incidents"]
    recovery = {phase: value for phase, value in incident["phases_seconds"].items() if value is not None}
    for phase, seconds in {**recovery, "recovery": incident["recovery_seconds"]}.items():
        value = found["chaos_recovery_seconds", (("fault", "kill-node"), ("phase", phase))]
        assert value == pytest.approx(seconds, abs=1e-9)
    for cause, seconds in summary["badput_seconds"].items():
        assert found["training_badput_seconds_total", (("cause", cause),)] == pytest.approx(seconds, abs=1e-9)
    assert found["training_goodput_ratio", ()] == pytest.approx(summary["goodput_ratio"])
    assert found["chaos_throughput_drop_ratio", ()] == summary["throughput_drop_ratio"]
    assert found["chaos_gate_passed", (("gate", "steps_lost == 0"),)] == 1
    assert found["chaos_gate_passed", (("gate", "throughput_drop <= 1%"),)] == 0
    verdicts = {labels[0][1]: value for (name, labels), value in found.items() if name == "chaos_verdict"}
    assert verdicts == {**dict.fromkeys(verdicts, 0), "fail": 1}
    assert len(verdicts) == 6


def test_both_formats_and_promtool_take_it(tmp_path):
    registry = registry_of(whole_run(), summarize(whole_run()))
    assert list(parse_text(generate_latest(registry).decode()))
    assert samples(registry)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for text in (generate_latest(registry), generate_latest(rank_registry())):
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_before_anything_happened_nothing_is_made_up():
    names = {name for name, _ in samples(registry_of([]))}
    judged = {"chaos_verdict", "chaos_gate_passed", "chaos_throughput_drop_ratio"}
    assert not {"training_step", "training_loss", "training_goodput_ratio", *judged} & names
    going_on = [event for event in run() if event.monotonic_seconds < 1002.0]
    found = samples(registry_of(going_on))
    assert found["training_running", ()] == 1
    # There from the beginning, so that the first one is an increase.
    assert found["chaos_faults_total", (("fault", "kill-node"), ("outcome", "verified"))] == 0
    assert not {"chaos_verdict", "chaos_gate_passed"} & {name for name, _ in found}


def test_a_loss_that_is_no_number_is_told():
    events = [event for event in run(faults=(), steps=5, baseline=False) if event.kind != "job_ended"]
    last = max(index for index, event in enumerate(events) if event.kind == "step_committed")
    for loss in (math.nan, math.inf):
        events[last].fields["loss"] = loss
        value = samples(registry_of(events))["training_loss", ()]
        assert math.isnan(value) if math.isnan(loss) else value == math.inf


def test_a_gate_without_an_answer_is_neither_passed_nor_failed():
    gates = [
        {"expression": "final_loss < 3", "value": None, "passed": None},
        {"expression": "steps_lost == 0", "value": 0, "passed": True},
        # Asked for, and built in.
        {"expression": "steps_lost == 0", "value": 0, "passed": True, "builtin": True},
        {"expression": 'odd "quoted" \\ and long ' + "x" * 500, "value": 1, "passed": False},
    ]
    found = samples(registry_of([], read_summary({"gates": gates, "verdict": "inconclusive"})))
    values = {labels[0][1]: value for (name, labels), value in found.items() if name == "chaos_gate_passed"}
    assert math.isnan(values["final_loss < 3"])
    assert values["steps_lost == 0"] == 1
    assert len(values) == 3
    assert max(map(len, values)) <= 200


def test_device_errors_say_that_they_were_not_measured():
    found = samples(registry_of(whole_run()))
    labels = (("error", "ecc_single_bit"), ("fidelity", "telemetry"), ("rank", "3"))
    assert found["training_device_errors_total", labels] == 5
    assert found["training_device_last_xid", (("fidelity", "telemetry"), ("rank", "3"))] == 79


def rank_registry(device="cpu"):
    figures = RankFigures(2, 1, device, Pacer(1.0))
    spans = (Span(2, 0, 3, frozenset({1})), Span(5, 3, 4))
    figures.enter(4, Layout(4, (Replica(0, spans, 8),)), 2)
    for step in (1, 2):
        figures.commit(step, StepCommitted(loss=3.5, tokens=100, began_monotonic=1.0, committed_monotonic=1.12))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return registry


def test_a_rank_tells_its_own_figures():
    found = samples(rank_registry())
    here = (("node", "1"), ("rank", "2"))
    assert found["training_rank_info", (("device", "cpu"), *here)] == 1
    assert (found["training_rank_step", here], found["training_rank_epoch", here]) == (2, 4)
    assert (found["training_rank_steps_total", here], found["training_rank_tokens_total", here]) == (2, 200)
    assert found["training_rank_step_seconds_count", here] == 2
    assert found["training_rank_step_seconds_sum", here] == pytest.approx(0.24)
    assert found["training_rank_step_seconds_bucket", (("le", "0.15"), *here)] == 2
    assert found["training_rank_step_seconds_bucket", (("le", "0.1"), *here)] == 0
    assert found["training_rank_layers", (("kind", "exact"), *here)] == 2
    assert found["training_rank_layers", (("kind", "degraded"), *here)] == 1
    assert found["training_rank_resident_memory_bytes", here] > 1e6
    assert not any(name == "training_rank_device_memory_bytes" for name, _ in found)


def documented():
    """Name -> (type, labels) of every row of the tables."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", with_tables(DOCUMENT.read_text()), re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_documentation_names_every_metric_with_its_type_and_labels():
    known = documented()
    events = [*whole_run()]
    found = {}
    for registry, common in (
        (registry_of([e for e in events if e.kind != "job_ended"], summarize(events)), set()),
        (rank_registry(), {"rank", "node"}),
    ):
        for family in registry.collect():
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = set().union(*(sample.labels for sample in family.samples)) - {"le"} - common
            found[family.name + suffix] = (family.type, labels)
    # Only of a rank on a GPU, and of a job over several hosts.
    assert known.keys() - found.keys() == {"training_rank_device_memory_bytes", "training_host_observed"}
    assert found == {name: known[name] for name in found}


def test_the_example_configuration_is_one_that_prometheus_takes(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    (tmp_path / "prometheus.yml").write_text(example.replace("/path/to/chaos-runs", str(tmp_path)))
    (tmp_path / "prometheus.json").write_text("[]")
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
