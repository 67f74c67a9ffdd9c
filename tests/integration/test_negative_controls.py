"""What must not pass: an injector that does nothing, a runtime that loses samples, and one that never goes on."""

import pytest

from tests.integration.runs import IN_RANKS, PATIENT, SMALL, paced, run_chaos

pytestmark = pytest.mark.integration

KILL = ("kill-node", "--at", "step=10", "--on", "node=1", "--repair", "none", "--steps", "20", *SMALL)
# Of which one can be left out or repeated.
TWO = ("--microbatches-per-replica", "2")

# For the command's own process alone.
IN_COMMAND = "import sys\nif sys.orig_argv[1] == '-c':\n"

DO_NOTHING = f"""{IN_COMMAND}
    from chaos.faults.process.kill import KillNode

    async def do_nothing(self, act, host):
        pass

    KillNode.apply = do_nothing
"""
# Orders to start ranks again come to nothing.
NEVER_REPAIR = f"""{IN_COMMAND}
    from harness.backends.node_job import NodeJob

    NodeJob.repair_rank = lambda self, rank: None
"""
# The replicas that took over compute one microbatch less than their share ...
DROP_A_MICROBATCH = f"""{IN_RANKS}
    from mecefo_runtime.step.pipeline import Pipeline

    create = Pipeline.__init__

    def create_wrong(self, layout, *rest):
        create(self, layout, *rest)
        if layout.num_degraded_layers:
            self.microbatches = self.microbatches[:-1]

    Pipeline.__init__ = create_wrong
"""
# ... or the first one twice and the last one never.
REPEAT_A_MICROBATCH = DROP_A_MICROBATCH.replace(
    "= self.microbatches[:-1]", "= [self.microbatches[0], *self.microbatches[:-1]]"
)
# One survivor's parameters change behind everybody's back.
DIVERGE = f"""{IN_RANKS}
    from mecefo_runtime.step.step import Stepper

    run = Stepper.run

    def diverge(self, epoch, number):
        if number == 15 and self._rank == max(epoch.members):
            epoch.state.units["head"].parameters.mul_(1.001)
        return run(self, epoch, number)

    Stepper.run = diverge
"""
# The last survivor stops for ever in its first step after the takeover, while its signs of life go on.
FREEZE = f"""{IN_RANKS}
    import threading

    from mecefo_runtime.step.step import Stepper

    run = Stepper.run

    def freeze(self, epoch, number):
        if epoch.layout.num_degraded_layers and self._rank == max(epoch.members):
            threading.Event().wait()
        return run(self, epoch, number)

    Stepper.run = freeze
"""
# From the takeover on: to start, and to regroup, may take as long as it does on a busy machine.
BE_IMPATIENT = f"""{IN_COMMAND}
    import harness.run.conductor
    import harness.run.job_run

    on_event = harness.run.conductor.Conductor._on_event

    def listen(self, event):
        if event.kind == "regrouped" and event.fields["reason"] == "loss":
            harness.run.job_run.STALL_SECONDS = 1.0
            # However long a rank may be silent.
            harness.run.job_run.STALL_HEARTBEATS = 0
        on_event(self, event)

    harness.run.conductor.Conductor._on_event = listen
"""
# Ranks that never come so far that they say hello.
NEVER_BEGIN = f"""{IN_RANKS}
    import threading

    import mecefo_runtime.launch.worker

    mecefo_runtime.launch.worker.run_worker = lambda environment: threading.Event().wait()
"""


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(DROP_A_MICROBATCH, id="dropped"),
        pytest.param(REPEAT_A_MICROBATCH, marks=pytest.mark.nightly, id="repeated"),
    ],
)
def test_runtime_that_loses_samples_fails(tmp_path, patch):
    run = run_chaos(tmp_path, *KILL, *TWO, patch=PATIENT + patch)
    assert (run.summary["verdict"], run.exit_code) == ("fail", 1), run.summary["reasons"]
    assert run.summary["samples_lost"] > 0
    assert run.summary["steps_lost"] == 0
    assert "samples_lost" in run.summary["reasons"][0]
    assert run.summary["incidents"][0]["verified"]


def test_runtime_whose_replicas_drift_apart_fails(tmp_path):
    run = run_chaos(tmp_path, *KILL, patch=PATIENT + DIVERGE)
    assert (run.summary["verdict"], run.exit_code) == ("fail", 1), run.summary["reasons"]
    assert run.summary["diverged_units"] >= 1
    assert "differ at the end between the ranks" in run.summary["reasons"][0]


def test_runtime_that_freezes_after_the_fault_has_not_recovered(tmp_path):
    run = run_chaos(tmp_path, *KILL, patch=PATIENT + FREEZE + BE_IMPATIENT)
    assert (run.summary["verdict"], run.exit_code) == ("fail", 1), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["verified"], incident["recovered"], incident["recovery_seconds"]) == (True, False, None)
    assert run.summary["unrecovered_incidents"] == 1
    # It did regroup: only a step that begins after the fault is a recovery.
    assert len(run.of("regrouped")) == 2
    assert "no step was committed for" in run.of("job_failed")[0].fields["reason"]
    assert run.of("residue")[0].fields["processes"] == []


@pytest.mark.nightly
def test_a_repair_that_never_comes_to_its_end_is_no_pass(tmp_path):
    kill = ("kill-process", "--at", "step=10", "--on", "rank=3", "--repair", "5steps", "--steps", "150", *SMALL)
    run = run_chaos(tmp_path, *kill, patch=f"{paced(0.05)}\n{NEVER_REPAIR}")
    assert (run.exit_code, run.summary["verdict"]) == (5, "inconclusive")
    (reason,) = run.summary["reasons"]
    assert "its repair began" in reason and reason.endswith("rank 3 was not in the job at its end")
