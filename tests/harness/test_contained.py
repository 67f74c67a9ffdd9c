"""An analysis that fails, or takes too much, costs its own figure; what is proven stays, and there are always files."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos.host.run_files import EVENTS_FILE, SUMMARY_FILE
from harness.analysis import contained
from harness.analysis.contained import LEAST_OPERATIONS, charge
from harness.exporter.families import RunCollector
from harness.exporter.figures import Figures
from harness.judging.summarize import summarize
from harness.live.lines import PlainView
from harness.report import terminal
from harness.run.execute import JUNIT_FILE, REPORT_FILE, write_reports
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit

ANALYSES = (
    "harness.analysis.accounting.partitioned",
    "harness.analysis.throughput.measured",
    "harness.analysis.timeline.compare_replicas",
    "harness.analysis.timeline.read_incidents",
    "harness.analysis.timeline.Attribution",
    "harness.analysis.diagnosis.diagnose",
    "harness.analysis.integrity.compare_losses",
    "harness.judging.caveats._of_the_speed",
    "harness.judging.caveats.shared_badput",
    "harness.judging.verdict._incident_reasons",
    "harness.judging.series.Recorded",
    "harness.judging.stored._doubts",
    "harness.report.html.trace",
    "harness.report.html.deciding",
    "harness.report.html.chronicle",
    "harness.report.html._tiles",
    "harness.report.html.template",
    "harness.report.history.build",
    "harness.report.junit._suite",
    "harness.report.terminal.trace",
    "harness.report.terminal.wording.headline",
)
MAY_CHANGE_THE_VERDICT = ("analysis", "judging")


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the checker is broken")


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError


def too_deep(*_: Any, **__: Any) -> Any:
    return too_deep()


def too_much(*_: Any, **__: Any) -> Any:
    for _ in range(1000):
        charge(LEAST_OPERATIONS)
    raise RuntimeError("nobody counts this")


WAYS = (fail, out_of_memory, too_deep, too_much)


def stored(folder: Path, events: list[Event]) -> Path:
    folder.mkdir()
    (folder / EVENTS_FILE).write_text("".join(event.to_json() + "\n" for event in events), encoding="utf-8")
    return folder


def failing() -> list[Event]:
    """A run that fails: of it a gate is not kept."""
    return run(baseline=True, gates=["recovery_seconds max < 1ms"])


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.store.log._last", None)


@pytest.mark.parametrize("where", ANALYSES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_passed_is_inconclusive_at_worst_and_has_all_of_its_files(
    where: str, way: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = stored(tmp_path / "run", run(baseline=True))
    monkeypatch.setattr(where, way)
    summary = write_reports(folder)
    is_judged = any(part in where for part in MAY_CHANGE_THE_VERDICT)
    assert summary.verdict in (("pass", "inconclusive") if is_judged else ("pass",)), summary.reasons
    assert json.loads((folder / SUMMARY_FILE).read_bytes())["exit_code"] == summary.exit_code
    assert (folder / REPORT_FILE).stat().st_size > 200
    assert (folder / JUNIT_FILE).exists() == (where != "harness.report.junit._suite")


@pytest.mark.parametrize("where", ANALYSES)
@pytest.mark.parametrize("way", WAYS)
def test_report_ends_with_the_verdict_as_its_exit_code(
    where: str, way: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = stored(tmp_path / "run", run(baseline=True))
    monkeypatch.setattr(where, way)
    assert run_cli(["report", str(folder), "--html", str(tmp_path / "page.html")]) in (0, 5)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "where",
    [
        "harness.analysis.accounting.partitioned",
        "harness.analysis.timeline.compare_replicas",
        "harness.analysis.diagnosis.diagnose",
        "harness.analysis.integrity.compare_losses",
        "harness.judging.caveats._of_the_speed",
        "harness.judging.verdict._incident_reasons",
        "harness.report.html.trace",
    ],
)
def test_a_failure_that_is_proven_stays(where: str, way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    events = failing()
    assert summarize(events).verdict == "fail"
    monkeypatch.setattr(where, way)
    summary = summarize(events)
    assert (summary.verdict, summary.exit_code) == ("fail", 1), summary.reasons
    assert any("recovery_seconds max < 1ms" in reason for reason in summary.reasons)


@pytest.mark.parametrize(
    "where", ["harness.analysis.timeline.Attribution", "harness.analysis.integrity.compare_losses"]
)
def test_a_loss_that_is_not_finite_stays_one(where: str, monkeypatch: pytest.MonkeyPatch):
    events = [
        shifted(event, loss=float("nan")) if event.kind == "step_committed" and (event.step or 0) > 40 else event
        for event in run(baseline=False)
    ]
    assert summarize(events).verdict == "fail"
    monkeypatch.setattr(where, fail)
    summary = summarize(events)
    assert (summary.verdict, summary.exit_code) == ("fail", 1)
    assert Reason("loss_not_finite", verdict="fail", step=41) in summary.reason_codes


def test_a_job_that_died_of_a_fault_has_failed_whatever_else_is_known(monkeypatch: pytest.MonkeyPatch):
    events = run(baseline=False, faults=[Fault(recovers=False)], job_fails=True)
    before = summarize(events)
    monkeypatch.setattr("harness.analysis.timeline.read_incidents", fail)
    assert before.verdict in ("fail", "error")
    assert summarize(events).verdict == before.verdict


def test_what_needs_a_missing_figure_is_undecided(monkeypatch: pytest.MonkeyPatch):
    events = run(baseline=True, gates=["goodput >= 1%", "steps_lost == 0"])
    monkeypatch.setattr("harness.analysis.accounting.partitioned", too_much)
    summary = summarize(events)
    assert {gate.expression: gate.passed for gate in summary.gates}["goodput >= 1%"] is None
    assert {gate.expression: gate.passed for gate in summary.gates}["steps_lost == 0"] is True
    assert (summary.verdict, summary.exit_code) == ("inconclusive", 5)
    assert any(
        reason.startswith("the time accounting could not be computed: it takes more than ")
        for reason in summary.reasons
    )
    assert summary.goodput_ratio is None and summary.incidents[0].wall_clock_seconds is None
    assert summary.throughput_drop_ratio is not None


def test_the_bound_goes_with_the_length_of_the_log():
    problems: list[Reason] = []

    def work() -> int:
        charge(2 * LEAST_OPERATIONS)
        return 1

    assert contained.attempt("work", work, problems, size=0) is None
    assert contained.attempt("work", work, problems, size=LEAST_OPERATIONS) == 1
    assert [(one.code, one.get("what")) for one in problems] == [("analysis_failed", "work")]
    assert str(f"{LEAST_OPERATIONS:,} operations") in problems[0].get("error")
    # Nobody bounds what is computed for other ends.
    assert work() == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_view_fails_no_run_and_says_so_once(way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.live.progress.Recoveries.feed", way)
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in run(baseline=False):
            with contained.budget(0):
                view.feed(event)
    assert stream.getvalue().count("could not be computed") == 1


def test_a_sentence_that_cannot_be_made_costs_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.analysis.narrator._verified", fail)
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in run(baseline=False):
            view.feed(event)
    assert "the sentence of verified could not be computed: RuntimeError" in stream.getvalue()
    assert "rejoined the job" in stream.getvalue()


@pytest.mark.parametrize("way", WAYS)
def test_metrics_that_fail_leave_the_others(way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.analysis.accounting.account_until", way)
    figures = Figures()
    for event in run(baseline=False):
        figures.feed(event)
    found = {family.name: family for family in RunCollector(figures, lambda: figures.state.newest_seconds).collect()}
    assert found["chaos_figures_failed"].samples[0].value == 2
    assert "training_goodput_ratio" not in found
    assert {"training_steps", "training_ranks", "chaos_recovery_seconds", "chaos_throughput_drop_ratio"} <= found.keys()


def test_a_section_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.report.terminal.wording.time_rows", fail)
    events = run(baseline=True)
    console = Console(file=io.StringIO(), width=100)
    terminal.render(summarize(events), events, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the time could not be computed: RuntimeError: the checker is broken" in text
    assert "Gates (pass criteria)" in text and "Reproduce" in text
