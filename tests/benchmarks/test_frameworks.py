import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.frameworks import __main__ as command
from benchmarks.frameworks.cases import FAULTS, FRAMEWORKS, SCRIPTS, Fault, Framework
from benchmarks.frameworks.cells import Round, read_round, what_happened, why_not_run
from benchmarks.frameworks.own_log import (
    are_replicas_equal,
    injected_at,
    last_step,
    read_stamps,
    recovery_seconds,
    steps_repeated,
)
from harness.judging.summary import UNKNOWN, IncidentSummary
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.reason import Reason

pytestmark = pytest.mark.unit

HERE = Framework("here", "Here", ("pytest",), lambda folder: ["true"])
ABSENT = Framework("absent", "Absent", ("pytest", "no-such-distribution"), lambda folder: ["true"])
STAYED = {"recovered": True, "attempt": 1, "recovery_attempt": 1}
RESTARTED = {**STAYED, "recovery_attempt": 2, "recovery_step": 31}
KILL = Fault("kill-process", "kill-process", num_rounds=3)
PASSED = Round("pass", 0, "went on", steps_lost=4, own_steps_lost=4, recovery_seconds=3.0, own_recovery_seconds=3.002)


def write(folder, rank, *lines):
    """`lines` are (what, step, seconds, pid), and the checksum where there is one."""
    keys = ("what", "step", "seconds", "pid", "checksum")
    written = [json.dumps(dict(zip(keys, line, strict=False))) for line in lines]
    (folder / f"steps-{rank}.jsonl").write_text("\n".join(written) + "\n")


def restarted(folder):
    """Two ranks with a checkpoint after step 2; rank 1 dies in step 4 at 10.5 s, both go on from step 3 at 13 s."""
    before = [(what, step, 6.0 + step + at, 1) for step in (1, 2, 3) for what, at in (("began", 0.0), ("done", 0.9))]
    after = [(what, step, 10.0 + step + at, 2) for step in (3, 4, 5) for what, at in (("began", 0.0), ("done", 0.9))]
    resumed = ("resumed", 2, 12.9, 2)
    write(folder, 0, *before, ("began", 4, 10.0, 1), resumed, *after, ("ended", 5, 16.0, 2, "aa"))
    write(folder, 1, *before, ("began", 4, 10.0, 1), resumed, *after, ("ended", 5, 16.0, 2, "aa"))
    return folder


@pytest.mark.parametrize("framework", [one for one in FRAMEWORKS if one.name != "torchtitan"], ids=lambda one: one.name)
def test_every_script_writes_down_its_steps(framework, tmp_path):
    (script,) = [part for part in framework.command(tmp_path) if part.startswith(str(SCRIPTS))]
    if script.endswith(".sh"):
        script = script.replace("torchft.sh", "train_torchft.py")
    tree = ast.parse(Path(script).read_text())
    called = {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")}
    assert {"began", "done", "resumed"} <= called
    assert not any("chaos" in ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_one_that_a_command_can_have(fault, capsys):
    options = ["--at", fault.at, "--on", "rank=1", *fault.options, "--dry-run"]
    # torchrun itself need not be on PATH.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert run_cli(["run", fault.kind, *options, "--", *torchrun, str(SCRIPTS / "train_ddp.py")]) == 0


def test_figures_of_the_script_alone(tmp_path):
    stamps = read_stamps(restarted(tmp_path))
    assert steps_repeated(stamps) == 1
    # The step that was under way at 10.5 s had begun before; 3, done again, is the first that began after it.
    assert recovery_seconds(stamps, 10.5) == pytest.approx(13.9 - 10.5)
    assert last_step(stamps) == 5
    assert are_replicas_equal(stamps) is True
    assert recovery_seconds(stamps, 20.0) is None


def test_a_step_that_was_begun_twice_counts_for_its_own_process_only(tmp_path):
    write(tmp_path, 0, ("began", 4, 10.0, 1), ("began", 4, 14.0, 2), ("done", 4, 15.0, 2))
    assert recovery_seconds(read_stamps(tmp_path), 12.0) == pytest.approx(3.0)
    write(tmp_path, 0, ("began", 4, 10.0, 1), ("done", 4, 15.0, 1))
    assert recovery_seconds(read_stamps(tmp_path), 12.0) is None


def test_the_last_line_of_a_process_that_was_killed_may_be_cut_short(tmp_path):
    write(tmp_path, 0, ("began", 1, 1.0, 1), ("done", 1, 2.0, 1))
    with (tmp_path / "steps-0.jsonl").open("a") as file:
        file.write('{"what": "beg')
    assert len(read_stamps(tmp_path)) == 2


@pytest.mark.parametrize(("ends", "equal"), [(["aa", "aa"], True), (["aa", "bb"], False), (["aa"], None)])
def test_replicas_are_compared_where_two_came_to_the_end(tmp_path, ends, equal):
    for rank, checksum in enumerate(ends):
        write(tmp_path, rank, ("ended", 5, 16.0, 2, "before"), ("ended", 5, 17.0, 2, checksum))
    assert are_replicas_equal(read_stamps(tmp_path)) is equal


def test_the_time_of_the_fault_is_that_of_the_log():
    assert injected_at([{"kind": "held", "monotonic": 1.0}, {"kind": "injected", "monotonic": 2.0}]) == 2.0
    assert injected_at([{"kind": "held", "monotonic": 1.0}]) is None


def test_a_round_has_both_records(tmp_path):
    incident = IncidentSummary(0, "kill-process", injected=True, recovered=True, recovery_seconds=3.4)
    log = tmp_path / "events.jsonl"
    log.write_text('{"kind": "injected", "monotonic": 10.5}\n')
    summary = replace(UNKNOWN, verdict="pass", exit_code=0, steps_lost=1, incidents=(incident,))
    done = read_round(summary, log, restarted(tmp_path))
    assert (done.steps_lost, done.own_steps_lost) == (1, 1)
    assert done.recovery_seconds == pytest.approx(done.own_recovery_seconds)
    assert done.disagreements == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps_lost": 24}, "steps lost: 24, by the script's own record 4"),
        ({"recovery_seconds": 2.7}, "recovery: 2.700 s, by the script's own record 3.002 s"),
        ({"recovery_seconds": None}, "recovery: never, by the script's own record 3.002 s"),
        ({"own_replicas_equal": False}, "pass, though the replicas' parameters differ at the end"),
        (
            {"reason_codes": ("replicas_differ",), "own_replicas_equal": True},
            "replicas are said to differ, though their parameters are equal at the end",
        ),
    ],
)
def test_what_the_script_knows_better_is_said(changed, said):
    assert PASSED.disagreements == []
    assert replace(PASSED, **changed).disagreements == [said]


@pytest.mark.parametrize(
    ("summary", "incident", "words"),
    [
        (
            {},
            RESTARTED,
            "started again, on from step 31",
        ),
        ({}, STAYED, "went on in the same processes"),
        ({"job_outcome": "failed"}, {"recovered": False}, "made no step after it; the job failed"),
        (
            {"first_non_finite_loss_step": 37},
            STAYED,
            "went on in the same processes; loss not finite from step 37 on",
        ),
        ({}, {"injected": False}, "the fault did not come"),
        (
            {
                "reasons": ("gate 'a == 0' failed: a is 1", "incident 0 (raise on rank=1): no step began after it"),
                "reason_codes": (Reason("gate_failed", gate="a == 0"), Reason("not_recovered")),
                "caveat_codes": (
                    Reason("no_step_after"),
                    Reason("replicas_compared_early", compared_step=50, last_step=60),
                ),
            },
            STAYED,
            "went on in the same processes; no step began after it; "
            "The replicas' state was last compared after step 50 of 60: what differed later is not known",
        ),
    ],
)
def test_a_cell_in_words(summary, incident, words):
    told = IncidentSummary(**{"incident": 0, "fault": "raise", "injected": True, **incident})
    assert what_happened(replace(UNKNOWN, **{"job_outcome": "completed", **summary}, incidents=(told,))) == words


def test_the_line_that_says_why_a_job_did_not_run():
    assert why_not_run("starting\n  ValueError: no such device\nfiles: here\n") == "ValueError: no such device"
    reason = "File \"train.py\" | torch.load(x) | AttributeError: no attribute 'x'; was not injected: never fired"
    assert why_not_run(reason) == "AttributeError: no attribute 'x'"
    assert why_not_run("chaos: no such file\n") == "chaos: no such file"
    assert why_not_run("") == "nothing was said"


def test_a_framework_that_is_not_installed_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("it was run"))
    row = command.row_of(ABSENT, (KILL,), tmp_path, quick=False)
    assert (row.cells, row.why_not) == ((), "not installed: no-such-distribution")


def test_a_job_that_does_not_run_is_tried_once(tmp_path, monkeypatch):
    tried = []
    failed = Round("error", 3, "no device", error="no device")
    monkeypatch.setattr(command, "measure", lambda *arguments: tried.append(arguments) or failed)
    row = command.row_of(HERE, FAULTS, tmp_path, quick=False)
    assert (row.cells, row.why_not) == ((), "does not run here: no device")
    assert len(tried) == 1


@pytest.mark.parametrize(("quick", "num_rounds"), [(False, 3), (True, 1)])
def test_every_round_is_in_the_cell(tmp_path, monkeypatch, quick, num_rounds):
    folders = []
    monkeypatch.setattr(command, "measure", lambda framework, fault, out: folders.append(out) or PASSED)
    row = command.row_of(HERE, (KILL,), tmp_path, quick=quick)
    assert row.cells[0].recovery.num_values == num_rounds
    assert len(set(folders)) == num_rounds


@pytest.mark.parametrize(("own_steps_lost", "exit_code"), [(4, 0), (5, 1)])
def test_the_command_tells_all_and_fails_where_the_script_disagrees(monkeypatch, own_steps_lost, exit_code):
    done = replace(PASSED, own_steps_lost=own_steps_lost)
    monkeypatch.setattr(command, "measure", lambda *_: done)
    monkeypatch.setattr(command, "FRAMEWORKS", (HERE, ABSENT))
    told = CliRunner().invoke(command.main, ["--fault", "kill-process"])
    assert told.exit_code == exit_code
    assert "pass, 3.00 s" in told.stdout
    assert "not installed: no-such-distribution" in told.stdout
    assert ("DISAGREES: here, kill-process: steps lost: 4" in told.stdout) is bool(exit_code)
    assert "apart by 2.0 ms (median), 2.0 ms (most), n=3" in told.stdout
    document = json.loads(CliRunner().invoke(command.main, ["--json", "--fault", "kill-process"]).stdout)
    assert [row["name"] for row in document["frameworks"]] == ["here", "absent"]
    assert document["frameworks"][0]["faults"][0]["recovery_seconds"]["n"] == 3


def test_the_launcher_of_torchft_is_a_shell_script():
    subprocess.run(["bash", "-n", str(SCRIPTS / "torchft.sh")], check=True)
