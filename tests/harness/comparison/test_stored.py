"""What can be compared: stored runs, sets, and files of figures."""

from __future__ import annotations

import json

import pytest

from chaos.errors import EnvironmentFailure, UsageError
from harness.comparison.stored import find_samples, verdict_but_gates
from harness.run.execute import write_reports
from harness.store.runs import SET_FILE, find_run, list_runs, new_run_folder, new_set_folder
from mecefo_runtime.system.json_values import to_json
from tests.harness import synthetic
from tests.harness.comparison.samples import run_set, sample

pytestmark = pytest.mark.unit


def stored_run(out, **options):
    folder = new_run_folder(out, "synthetic")
    (folder / "events.jsonl").write_text("".join(f"{event.to_json()}\n" for event in synthetic.run(**options)))
    return folder, to_json(write_reports(folder))


def test_a_run_is_judged_again_from_its_log(tmp_path):
    folder, summary = stored_run(tmp_path)
    (folder / "summary.json").unlink()
    for reference in ("latest", "synthetic", str(folder)):
        (found,) = find_samples(tmp_path, reference)
        assert found.experiment_hash == summary["experiment_hash"]
        assert found.values("throughput_drop_ratio") == [summary["throughput_drop_ratio"]]
        assert found.values("recovery_seconds") == [summary["incidents"][0]["recovery_seconds"]]
        assert found.experiment


def test_reports_that_cannot_be_written_leave_the_log_to_judge_by(tmp_path):
    folder, _ = stored_run(tmp_path)
    (folder / "report.html").unlink()
    (folder / "report.html" / "in the way").mkdir(parents=True)
    with pytest.raises(EnvironmentFailure) as failure:
        write_reports(folder)
    assert f"report.html: Is a directory. The log is whole: `chaos report {folder}`" in str(failure.value)


def test_a_copied_summary_will_do(tmp_path):
    _, summary = stored_run(tmp_path / "out")
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(summary))
    (found,) = find_samples(tmp_path, "baseline.json")
    assert found.values("goodput_ratio") == [summary["goodput_ratio"]]


def test_a_set_by_folder_or_file_and_it_is_no_run(tmp_path):
    folder = new_set_folder(tmp_path, "compare")
    assert list_runs(tmp_path) == []
    (folder / SET_FILE).write_text(json.dumps(to_json(run_set(sample(1.0, 2.0), sample(3.0, label="ndb")))))
    for reference in (f"compare/{folder.name}", str(folder), str(folder / SET_FILE)):
        found = find_samples(tmp_path, reference)
        assert [(one.label, one.values("recovery_seconds")) for one in found] == [
            ("mecefo", [1.0, 2.0]),
            ("ndb", [3.0]),
        ]
    assert list_runs(tmp_path) == []


def test_a_set_does_not_become_the_latest_run(tmp_path):
    folder, _ = stored_run(tmp_path)
    new_set_folder(tmp_path, "repeat")
    assert (tmp_path / "latest").resolve() == folder.resolve()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"format": "chaos-set-1"}',
        '{"verdict": 1, "experiment_hash": 2, "incidents": 5}',
    ],
)
def test_what_is_no_such_thing_is_a_mistake_of_the_user(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError):
        find_samples(tmp_path, "x.json")


def test_an_unknown_name_is_told_with_the_nearest(tmp_path):
    stored_run(tmp_path)
    with pytest.raises(UsageError, match="Nearest: synthetic"):
        find_samples(tmp_path, "sinthetic")


def test_the_verdict_without_the_gates_that_were_asked_for(tmp_path):
    hard = ["throughput_drop <= 0.1%"]
    assert stored_run(tmp_path, gates=hard)[1]["verdict"] == "fail"
    assert verdict_but_gates(find_run(tmp_path, "latest")) == "pass"
    stored_run(tmp_path, gates=hard, faults=[synthetic.Fault(verified=False)])
    assert verdict_but_gates(find_run(tmp_path, "latest")) == "inconclusive"


def test_a_log_that_lost_lines_is_no_run_to_compare_with(tmp_path):
    folder, _ = stored_run(tmp_path)
    log = folder / "events.jsonl"
    head, *rest = log.read_bytes().splitlines(keepends=True)
    (good,) = find_samples(tmp_path, "latest")
    assert [run.is_usable for run in good.runs] == [True]
    for lines in (rest, [head, *rest[:40], b"no event\n", *rest[41:]]):
        log.write_bytes(b"".join(lines))
        (found,) = find_samples(tmp_path, "latest")
        assert [(run.verdict, run.verdict_but_gates) for run in found.runs] == [("inconclusive", "inconclusive")]
