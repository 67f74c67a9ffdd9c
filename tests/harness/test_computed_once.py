"""What is made of a whole log is made once by each command, however many ask for it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.host.run_files import EVENTS_FILE
from harness.comparison.stored import find_samples
from harness.run.execute import write_reports
from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.cli.shared.output import print_report
from mecefo_runtime.system.events import Event
from tests.harness.long_logs import DIMENSIONS
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit

EXPENSIVE = (
    "harness.store.log._read",
    "harness.analysis.state._fed",
    "harness.analysis.state.read",
    "harness.analysis.accounting.partitioned",
    "harness.analysis.throughput.measured",
    "harness.analysis.timeline.read_incidents",
    "harness.analysis.timeline.compare_replicas",
    "harness.judging.summarize._figures",
    "harness.judging.summarize.diagnosis.diagnose",
    "harness.judging.series.Recorded",
)
GATES = ["step_seconds p95 <= 1ms", "throughput min >= 1", "steps_lost == 0"]


def looking() -> list[Event]:
    """A command whose ranks are looked at."""
    return DIMENSIONS["looks"](20)


def ordinary() -> list[Event]:
    return run(baseline=True, faults=[Fault(), Fault(step=40, node=2)], gates=GATES)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    monkeypatch.setattr("harness.store.log._last", None)
    for where in EXPENSIVE:
        module, _, name = where.rpartition(".")
        monkeypatch.setattr(where, _counting(counts, where, _found(module, name)))
    return counts


def _found(module: str, name: str) -> Callable[..., Any]:
    import pkgutil

    found: Callable[..., Any] = getattr(pkgutil.resolve_name(module), name)
    return found


def _counting(counts: Counter[str], where: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Any:
        counts[where] += 1
        return work(*arguments, **named)

    return counted


def stored(folder: Path, events: list[Event]) -> Path:
    folder.mkdir(parents=True)
    (folder / EVENTS_FILE).write_text("".join(event.to_json() + "\n" for event in events), encoding="utf-8")
    return folder


def assert_once(counts: Counter[str]) -> None:
    assert {where: number for where, number in counts.items() if number != 1} == {}
    assert counts["harness.analysis.accounting.partitioned"] == 1


@pytest.mark.parametrize("events", [ordinary, looking])
def test_what_follows_a_run(events: Callable[[], list[Event]], counted: Counter[str], tmp_path: Path):
    folder = stored(tmp_path / "name" / "20260101T000000Z", events())
    # As `chaos run` does, with a set of runs and a baseline.
    summary = write_reports(folder)
    print_report(summary, folder, as_json=False)
    find_samples(tmp_path, str(folder))
    assert_once(counted)


@pytest.mark.parametrize("events", [ordinary, looking])
def test_a_report_with_its_page_and_pictures(
    events: Callable[[], list[Event]], counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness.report.pictures.BROWSERS", ("no-such-browser",))
    folder = stored(tmp_path / "run", events())
    code = run_cli(
        ["report", str(folder), "--html", str(tmp_path / "a.html"), "--pictures", str(tmp_path / "pictures")]
    )
    assert code in (0, 1, 5)
    assert_once(counted)


def test_of_two_runs_that_are_compared_each_is_looked_at_once(counted: Counter[str], tmp_path: Path):
    one, other = stored(tmp_path / "a", ordinary()), stored(tmp_path / "b", ordinary()[:-1])
    run_cli(["compare", str(one), str(other)])
    assert {where: number for where, number in counted.items() if number > 2} == {}


def test_a_log_that_was_changed_is_read_again(tmp_path: Path):
    folder = stored(tmp_path / "run", ordinary())
    before = write_reports(folder)
    log = folder / EVENTS_FILE
    # As long as it was, and at the same time for all that the file says.
    log.write_bytes(log.read_bytes().replace(b'"outcome":"completed"', b'"outcome":"cOmpleted"'))
    assert write_reports(folder).job_outcome != before.job_outcome
