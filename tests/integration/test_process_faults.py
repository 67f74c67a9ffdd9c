"""Faults of processes on a real job: seen, survived, undone; and one that does nothing counts as not seen."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.runs import IN_RANKS, PATIENT, SLOW_UNTIL_BACK, Finished, assert_sound, paced, run_chaos

pytestmark = pytest.mark.integration

STEPS = 30
# Longer than the heartbeat's time-out.
SILENT_SECONDS = 4.0
SILENT = {"for": f"{SILENT_SECONDS:g}s"}
# Steps that last until it is back, and some more: from the time-out on the others train without it.
SILENT_STEPS = 150
IN_TIME: Mapping[str, Any] = {"steps": SILENT_STEPS, "patch": paced(0.05)}
# For the command's own process alone.
IN_COMMAND = "import sys\nif sys.orig_argv[1] == '-c':\n"
DO_NOTHING = "\n    async def do_nothing(self, act, host):\n        pass\n"


def run_fault(folder, *, steps=STEPS, dilation="off", patch=PATIENT + SLOW_UNTIL_BACK, **fault) -> Finished:
    """Run one fault on the small job, as an experiment file says it."""
    job = {"nodes": 2, "gpus_per_node": 2, "strategy": "ndb", "dilation": dilation, "steps": steps}
    job["microbatches_per_replica"] = 1
    experiment = folder / "experiment.yaml"
    # JSON is YAML.
    experiment.write_text(json.dumps({"name": fault["kind"], "twin": False, "job": job, "faults": [fault]}))
    return run_chaos(folder / "run", str(experiment), patch=patch)


def assert_passed(run, steps=STEPS):
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, steps)
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["recovered"] and incident["phase_order_valid"]
    assert run.of("undone") and not run.of("undo_failed")
    return run.one("verified").fields["evidence"]


def assert_away_and_back(run, rank):
    """That the job went on without the silent rank, and took it back in the same process when its time was over."""
    injected = run.one("injected")
    detected = [e for e in run.of("detected") if rank in e.fields["lost"]]
    assert detected and detected[0].monotonic_seconds > injected.monotonic_seconds
    back = [e for e in run.of("rejoined") if rank in e.fields["ranks"]]
    assert back and back[0].monotonic_seconds >= injected.monotonic_seconds + SILENT_SECONDS
    assert not [e for e in run.of("process_started") if e.fields.get("rank_attempt", 1) > 1], "it was started again"


@pytest.mark.nightly
def test_node_that_is_asked_to_go(tmp_path):
    run = run_fault(tmp_path, kind="kill-node", on="node=1", at="step=10", repair="5steps", grace="10s")
    evidence = assert_passed(run)
    # Ranks of this runtime do not catch SIGTERM: nobody has to be killed.
    assert evidence["had_to_be_killed"] == []
    assert {process["exit"] for process in evidence["processes"]} == {-15}


@pytest.mark.nightly
def test_node_that_freezes_and_thaws(tmp_path):
    run = run_fault(tmp_path, kind="pause-node", on="node=1", at="step=10", **IN_TIME, **SILENT)
    evidence = assert_passed(run, SILENT_STEPS)
    assert sorted(process["role"] for process in evidence["processes"]) == ["rank", "rank", "supervisor"]
    assert_away_and_back(run, 2)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param({"kind": "segfault"}, -11, id="segfault"),
        pytest.param(
            {"kind": "raise", "exception": "OverflowError", "message": "loss scale"},
            1,
            marks=pytest.mark.nightly,
            id="raise",
        ),
        pytest.param({"kind": "exit", "code": 0}, 0, marks=pytest.mark.nightly, id="exit-0"),
    ],
)
def test_rank_that_crashes_from_within(tmp_path, fault, code):
    run = run_fault(tmp_path, on="rank=1", at="step=10,phase=backward", repair="5steps", **fault)
    evidence = assert_passed(run)
    assert [process["exit"] for process in evidence["processes"]] == [code]
    exited = next(e for e in run.of("process_exited") if e.fields.get("exited_rank") == 1)
    assert exited.fields["exit"] == code
    assert 1 in {rank for event in run.of("rejoined") for rank in event.fields["ranks"]}


@pytest.mark.nightly
def test_rank_that_holds_the_interpreter_lock(tmp_path):
    run = run_fault(tmp_path, kind="hang-gil", on="rank=1", at="step=10", **IN_TIME, **SILENT)
    evidence = assert_passed(run, SILENT_STEPS)
    assert [process["state"] for process in evidence["processes"]] == ["S"]
    assert_away_and_back(run, 1)
    assert list(run.folder.glob("*.gate")) == []


@pytest.mark.nightly
def test_rank_that_runs_out_of_memory(tmp_path):
    run = run_fault(tmp_path, kind="leak-memory", on="rank=1", at="step=10", repair="5steps", limit="128MiB")
    evidence = assert_passed(run)
    (process,) = evidence["processes"]
    by_killer = (process["limited_by"], process["exit"], process["oom_kills"]) == ("cgroup", -9, 1)
    by_limit = (process["limited_by"], process["exit"]) == ("rlimit", 1)
    assert by_killer or by_limit
    assert evidence["fidelity"] == ("real" if by_killer else "shaped")


# Padded far beyond what the machine needs, so that its load hides nothing.
@pytest.mark.nightly
@pytest.mark.parametrize(("dilation", "steps"), [("off", 240), (12, 60)])
def test_slow_rank_makes_the_job_slower(tmp_path, dilation, steps):
    fault = {"kind": "slow-rank", "on": "rank=1", "at": "step=21", "factor": 4.0, "for": "5s"}
    run = run_fault(tmp_path, dilation=dilation, steps=steps, **fault)
    evidence = assert_passed(run, steps)
    (process,) = evidence["processes"]
    assert process["stopped_ratio"] > 0.6
    # Not padded, a rank that waits for a busy core anyway loses less by being stopped.
    assert evidence["step_time_ratio"] > (0 if dilation == "off" else 1.3)
    assert evidence["padded_ratio"] == (1.0 if dilation == "off" else 12.0)
    assert not run.of("detected"), "slow is not lost"


NOTHING = {
    "pause-process": f"{IN_COMMAND}    from chaos.faults.process.pause import PauseProcess as Fault{DO_NOTHING}",
    "segfault": f"{IN_COMMAND}    from chaos.faults.process.crash import Segfault as Fault\n",
    "hang-gil": f"{IN_COMMAND}    from chaos.faults.process.hang import HangGil as Fault\n",
    "leak-memory": f"{IN_COMMAND}    from chaos.faults.process.memory import LeakMemory as Fault\n",
    "slow-rank": f"{IN_COMMAND}    from chaos.faults.process.straggler import SlowRank as Fault{DO_NOTHING}",
}
# Those that act inside are told to, and do not.
IDLE = """
    import chaos.in_process.crash, chaos.in_process.hang, chaos.in_process.memory
    for effect in (chaos.in_process.crash.Segfault, chaos.in_process.hang.HangGil, chaos.in_process.memory.LeakMemory):
        effect.released = lambda self: None
"""


# For every change: a kill that does nothing (the smoke tests), and a write to a tensor (test_tensor_faults).
@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted(NOTHING))
def test_fault_that_does_nothing_is_inconclusive(tmp_path, kind):
    patch = NOTHING[kind] + "    Fault.verify_timeout_seconds = 2.0\n"
    patch += "    Fault.apply = do_nothing\n" if DO_NOTHING in patch else IN_RANKS + IDLE
    run = run_fault(tmp_path, kind=kind, on="rank=1", at="step=10", patch=patch)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["verified"], incident["evidence"]) == (False, None)
    assert "could not be verified" in run.summary["reasons"][0]
    assert run.summary["steps_committed"] == STEPS
    assert run.of("residue")[0].fields["undo_pending"] == []
