"""`chaos compare` and `chaos run --repeat`, as a user calls them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integration.runs import PATIENT, RUN_TIMEOUT_SECONDS, ChaosRun, assert_nothing_left

pytestmark = pytest.mark.integration

SMALL = ("--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--no-twin", "--steps", "16")
FAULT = ("kill-process", "--at", "step=8", "--repair", "3steps", *SMALL)
LABELS = ["mecefo:speed", "checkpoint"]
ONCE_EACH = ("--strategies", ",".join(LABELS), "-K", "1", *FAULT)


def chaos(folder: Path, *arguments: str, out: Path) -> tuple[int, str, str]:
    with ChaosRun(folder, arguments, out=out, patch=PATIENT) as run:
        code = run.wait(RUN_TIMEOUT_SECONDS)
        assert "Traceback" not in run.stderr, run.stderr
        assert_nothing_left(run)
        return code, run.stdout, run.stderr


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(folder, out, the document) of a comparison."""
    folder = tmp_path_factory.mktemp("compared")
    code, text, _ = chaos(folder / "one", "compare", *ONCE_EACH, "--json", out=folder / "out")
    document = json.loads(text)
    assert code == document["exit_code"] == 0, document["reasons"]
    return folder, folder / "out", document


def figures_of(document, label):
    (sample,) = [sample for sample in document["samples"] if sample["label"] == label]
    return {name: spread["median"] for name, spread in sample["figures"].items()}


def test_the_same_faults_injection_under_each_strategy_and_each_pays_its_own_price(compared):
    _, _, document = compared
    assert [sample["label"] for sample in document["samples"]] == LABELS
    seeds = {sample["experiment"]["seed"] for sample in document["samples"]}
    faults = {json.dumps(sample["experiment"]["faults"]) for sample in document["samples"]}
    assert len(seeds) == len(faults) == 1
    mecefo, checkpoint = (figures_of(document, label) for label in LABELS)
    qualities = [sample["experiment"]["job"]["quality"] for sample in document["samples"]]
    assert qualities == ["speed", "auto"]
    assert (mecefo["steps_lost"], checkpoint["steps_lost"]) == (0, 7)
    # What each took its time for. How long that was says of single runs how busy the machine happened to be.
    assert checkpoint["badput_regroup_seconds"] == 0 < mecefo["badput_regroup_seconds"]
    assert checkpoint["badput_restart_seconds"] > 0
    assert checkpoint["recovery_seconds"] < checkpoint["progress_seconds"]
    assert mecefo["recovery_seconds"] == mecefo["progress_seconds"]


def test_it_is_stored_with_links_to_the_single_runs(compared):
    _, out, document = compared
    folder = Path(document["folder"])
    assert folder.parent == out / "compare"
    assert json.loads((folder / "set.json").read_text())["samples"] == document["samples"]
    assert "<svg" in (folder / "report.html").read_text()
    assert (folder / "plot.svg").is_file()
    for sample in document["samples"]:
        (run,) = sample["runs"]
        assert (folder / run["folder"] / "events.jsonl").is_file()
        summary = json.loads((folder / f"{sample['label']}-1" / "summary.json").read_text())
        assert summary["strategy"] == sample["label"].partition(":")[0]
        assert summary["goodput_ratio"] == run["figures"]["goodput_ratio"]


def test_a_strategy_with_a_quality_has_its_own_name_and_the_other_quality_in_its_log(compared):
    _, _, document = compared
    folder = Path(document["folder"])
    assert "<th>mecefo:speed</th>" in (folder / "report.html").read_text()
    approximation = json.loads((folder / "mecefo:speed-1" / "summary.json").read_text())["approximation"]
    assert approximation["quality"] == "speed" and approximation["num_layers"] == 8
    events = [json.loads(line) for line in (folder / "mecefo:speed-1" / "events.jsonl").read_text().splitlines()]
    planned = [event["fields"]["quality"] for event in events if event["kind"] == "other_quality_planned"]
    assert planned and set(planned) == {"auto"}
    assert json.loads((folder / "checkpoint-1" / "summary.json").read_text())["approximation"] is None


def test_the_set_is_no_run_but_can_be_compared(compared):
    folder, out, document = compared
    code, text, _ = chaos(folder / "list", "runs", "--json", out=out)
    assert (code, len(json.loads(text))) == (0, len(LABELS))
    reference = f"compare/{Path(document['folder']).name}"
    code, text, _ = chaos(
        folder / "against", "compare", reference, reference, "--figure", "steps_lost", "--json", out=out
    )
    assert code == 0
    assert [sample["label"] for sample in json.loads(text)["samples"]] == LABELS


def test_a_run_with_more_steps_lost_than_its_baseline_fails(compared):
    folder, out, document = compared
    mecefo, checkpoint = (sample["runs"][0]["folder"].removeprefix("../../") for sample in document["samples"])
    code, _, _ = chaos(folder / "other", "compare", checkpoint, mecefo, out=out)
    assert code == 5, "another experiment must not be compared"
    code, text, _ = chaos(folder / "worse", "compare", checkpoint, mecefo, "--anyway", out=out)
    assert code == 1
    assert "steps_lost got worse: 7, in the reference 0" in text


def test_interrupted_it_keeps_what_is_done(tmp_path):
    arguments = ["compare", "--strategies", "exact,ndb", "-K", "2", *FAULT]
    with ChaosRun(tmp_path, arguments, patch=PATIENT) as run:
        run.wait_for("run_ended")
        run.wait_for("step_committed", step=2)
        # The second run is under way, or about to be.
        while len(list(run.out.glob("kill-process/*/events.jsonl"))) < 2:
            assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.wait(RUN_TIMEOUT_SECONDS) == 2, run.stderr
        assert_nothing_left(run)
    (stored,) = run.out.glob("compare/*/set.json")
    document = json.loads(stored.read_text())
    assert document["status"] == "partial"
    assert document["samples"][0]["runs"][0]["verdict"] == "pass"
    assert "PARTIAL" in run.stdout
    assert "interrupted: of 2 rounds, exact ran 1, ndb ran none" in run.stdout


@pytest.mark.nightly
def test_all_runs_of_a_set_and_a_replay_have_the_ratings_of_the_first(tmp_path):
    options = (*FAULT, "--dilation", "3")
    _, text, _ = chaos(tmp_path / "set", "run", *options, "--repeat", "2", "--json", out=tmp_path / "out")
    document = json.loads(text)
    first, second = (run["ratings"] for run in document["samples"][0]["runs"])
    assert (first["were_given"], second["were_given"]) == (False, True)
    assert {**first["costs"], "transfer_bytes_per_second": 0} == {**second["costs"], "transfer_bytes_per_second": 0}
    _, text, _ = chaos(tmp_path / "again", "replay", "latest", "--json", out=tmp_path / "out")
    assert json.loads(text)["ratings"]["costs"]["layer_forward_seconds"] == first["costs"]["layer_forward_seconds"]


@pytest.mark.nightly
def test_a_run_has_the_ratings_of_its_baseline(tmp_path):
    options = (*FAULT, "--dilation", "3")
    _, text, _ = chaos(tmp_path / "first", "run", *options, "--json", out=tmp_path / "out")
    first = json.loads(text)["ratings"]
    _, text, _ = chaos(tmp_path / "next", "run", *options, "--baseline", "latest", "--json", out=tmp_path / "out")
    next_one = json.loads(text)["ratings"]
    assert (first["were_given"], next_one["were_given"]) == (False, True)
    assert next_one["costs"]["layer_forward_seconds"] == first["costs"]["layer_forward_seconds"]


@pytest.mark.nightly
def test_the_same_again_is_judged_on_medians_and_against_a_baseline(tmp_path):
    options = ("--strategy", "exact", *FAULT[1:])
    out = tmp_path / "out"
    junit = tmp_path / "junit.xml"
    twice = ("--repeat", "2", "--gate", "steps_lost == 0", "--gate", "recovery > 0", "--junit", str(junit), "--github")
    code, text, said = chaos(tmp_path / "first", "run", FAULT[0], *options, *twice, "--json", out=out)
    first = json.loads(text)
    assert (code, first["verdict"], first["status"]) == (0, "pass", "complete"), first["reasons"]
    assert [(gate["expression"], gate["passed"]) for gate in first["gates"]] == [
        ("steps_lost == 0", True),
        ("recovery > 0", True),
    ]
    suites = list(ElementTree.parse(junit).getroot())
    assert [suite.get("name") for suite in suites] == [f"chaos.kill-process{end}" for end in (".run-1", ".run-2", "")]
    assert [suite.get("failures") for suite in suites] == [suite.get("errors") for suite in suites] == ["0"] * 3
    assert "GITHUB_STEP_SUMMARY names no file" in said
    assert first["samples"][0]["figures"]["recovery_seconds"]["n"] == 2
    baseline = f"repeat/{Path(first['folder']).name}"
    code, text, _ = chaos(
        tmp_path / "second", "run", FAULT[0], *options, "--baseline", baseline, "--gate", "goodput > 200%", out=out
    )
    assert code == 1, "the gate failed"
    assert "this run against the baseline" in text
