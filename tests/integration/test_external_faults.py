"""Faults inside an external job under `chaos run FAULT -- COMMAND`: what is seen of them, and whom is blamed."""

import json
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from chaos.host.small_disk import may_mount
from tests.integration.runs import run_chaos

pytestmark = pytest.mark.external

TRAINING = str(Path(__file__).parent / "external_training.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
RANKS = ("--nproc-per-node", "2")

# FSDP's second version: each rank's optimizer has a part of each parameter.
SHARDED = """
import torch
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
for part in (*model, model):
    fully_shard(part)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(12):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def plain(tmp_path):
    return (sys.executable, TRAINING, "30", str(tmp_path / "c.pt"))


@pytest.fixture
def restarting(tmp_path, monkeypatch):
    """Two ranks under torchrun, which starts them again once, from a checkpoint."""
    # See tests/integration/test_external.py.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return (*TORCHRUN, *RANKS, "--max-restarts", "1", TRAINING, "30", str(tmp_path / "c.pt"))


class TestTensors:
    """Wrong values in a script's own tensors: its own optimizer is asked what it made of them, and would have."""

    @pytest.mark.parametrize(
        ("fault", "parameters"),
        [
            pytest.param("bit-flip", ("-p", "where=gradients", "-p", "bit=exponent"), id="bit-flip"),
            pytest.param("scale", ("-p", "where=gradients"), marks=pytest.mark.nightly, id="scale"),
            pytest.param("scale", ("-p", "where=optimizer"), marks=pytest.mark.nightly, id="optimizer"),
            pytest.param("stale-gradient", (), marks=pytest.mark.nightly, id="stale"),
        ],
    )
    def test_the_optimizer_takes_them_in(self, tmp_path, plain, fault, parameters):
        run = run_chaos(tmp_path, fault, "--at", "step=8", *parameters, command=plain)
        assert run.exit_code == 0, run.summary["reasons"]
        (told,) = run.one("verified").fields["evidence"]["ranks"]
        assert told["outcome"] == "consumed"
        update = told["update"]
        assert update["parameter_actual"] == pytest.approx(update["parameter_struck"], rel=1e-5)
        assert update["parameter_actual"] != update["parameter_clean"]
        assert run.summary["steps_committed"] == 30

    @pytest.mark.nightly
    def test_and_what_its_optimizer_has_of_it(self, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(SHARDED)
        faults = [
            {"kind": "bit-flip", "at": {"step": step}, "on": "rank=1", "where": where, "bit": 22}
            for step, where in ((3, "gradients"), (6, "optimizer"), (9, "activations"))
        ]
        command = [*TORCHRUN, *RANKS, str(script)]
        # JSON is YAML.
        experiment = {"name": "sharded", "faults": faults, "job": {"runtime": "command", "command": command}}
        tmp_path.joinpath("e.yaml").write_text(json.dumps(experiment))
        run = run_chaos(tmp_path, "e.yaml")
        assert run.exit_code == 0, run.summary["reasons"]
        told = [event.fields["evidence"]["ranks"][0]["outcome"] for event in run.of("verified")]
        assert len(told) == 3 and set(told) <= {"consumed", "masked"}

    def test_a_loss_that_is_no_number_fails_the_run(self, tmp_path, plain):
        run = run_chaos(tmp_path, "set-nan", "--at", "step=8", command=plain)
        assert run.exit_code == 1
        assert run.summary["reason_codes"][0] == {"code": "loss_not_finite", "verdict": "fail", "step": 9}
        losses = {event.step: event.fields["loss"] for event in run.of("step_committed")}
        assert math.isfinite(losses[8]) and math.isnan(losses[9])
        assert run.summary["final_loss"] is None


class TestCrashes:
    """Ends of ranks whose parent is not ours: seen by their exit codes, and the launcher says who was first."""

    @pytest.mark.parametrize(
        ("fault", "code", "words"),
        [
            ("segfault", -11, "ended by SIGSEGV"),
            pytest.param("raise", 1, "RuntimeError: injected by chaos", marks=pytest.mark.nightly),
            pytest.param("exit", 1, "_exit(1)", marks=pytest.mark.nightly),
        ],
    )
    def test_of_a_script_without_a_launcher(self, tmp_path, plain, fault, code, words):
        run = run_chaos(tmp_path, fault, "--at", "step=8,phase=backward", command=plain)
        assert (run.exit_code, run.summary["steps_committed"]) == (1, 7)
        evidence = run.one("verified").fields["evidence"]
        assert words in evidence["summary"]
        assert [process["exit"] for process in evidence["processes"]] == [code]
        assert run.of("culprit_named") == []
        assert run.summary["incidents"][0]["diagnosis"]["score"] == "none"

    @pytest.mark.nightly
    def test_torchrun_names_the_rank_whose_process_failed_first(self, tmp_path, restarting):
        run = run_chaos(tmp_path, "raise", "--at", "step=8", "--on", "rank=1", command=restarting)
        assert run.exit_code == 0, run.summary["reasons"]
        assert [process["exit"] for process in run.one("verified").fields["evidence"]["processes"]] == [1]
        assert_named_as_in_the_log(run)


def assert_named_as_in_the_log(run):
    """That the diagnosis is torchrun's own: it may have found the other rank first, which ends of the lost peer."""
    (named,) = run.of("culprit_named")
    pid = int(re.search(r"failed \(exitcode: .*\(pid: (\d+)\)", (run.folder / "logs/job.log").read_text())[1])
    starts = {event.fields["started_pid"]: event.fields.get("started_rank") for event in run.of("process_started")}
    assert named.fields == {"ranks": [starts[pid]], "how": "torchrun"}
    diagnosis = run.summary["incidents"][0]["diagnosis"]
    is_right = starts[pid] == 1
    assert (diagnosis["struck"], diagnosis["named"]) == ([1], [starts[pid]])
    assert diagnosis["score"] == ("right" if is_right else "wrong")
    if is_right:
        seconds = named.monotonic_seconds - run.one("injected").monotonic_seconds
        assert (diagnosis["how"], diagnosis["seconds"]) == ("torchrun", pytest.approx(seconds))


# It writes each checkpoint over the one before, and trains on where that fails.
SAVING = """
import sys
import time

import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 31):
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step % 5 == 0:
        try:
            torch.save({"step": step, **model.state_dict()}, sys.argv[1])
        except RuntimeError:
            print("not saved", step, flush=True)
"""


class TestSaves:
    """Where a script saves is observed, and so is that a save fails."""

    @pytest.mark.skipif(not may_mount(), reason="takes the right to mount (CAP_SYS_ADMIN)")
    def test_a_full_disk_breaks_saves_in_the_folder_that_was_observed_and_leaves_nothing(self, tmp_path):
        script, checkpoint = tmp_path / "train.py", tmp_path / "saved" / "ckpt.pt"
        script.write_text(SAVING)
        checkpoint.parent.mkdir()
        command = (sys.executable, str(script), str(checkpoint))
        run = run_chaos(tmp_path, "fill-disk", "--at", "step=12", "--for", "10steps", command=command)
        assert run.exit_code == 0, run.summary["reasons"]
        printed = (run.folder / "logs/job.log").read_text()
        unsaved = [int(step) for step in re.findall(r"not saved (\d+)", printed)]
        failed = run.of("checkpoint_failed")
        assert [event.step for event in failed] == unsaved and unsaved[0] == 15
        assert {event.fields["path"] for event in failed} == {str(checkpoint)}
        written = [event.step for event in run.of("checkpoint_written")]
        assert written == sorted({5, 10, 15, 20, 25, 30} - set(unsaved))
        evidence = run.one("verified").fields["evidence"]
        assert (evidence["checkpoint_failed"]["step"], evidence["free_bytes"]) == (15, 0)
        assert run.summary["checkpoints_failed"] == len(unsaved)
        (caveat,) = (caveat for caveat in run.summary["caveats"] if "could not be saved" in caveat)
        assert caveat.startswith(f"{len(unsaved)} of 6 checkpoints could not be saved, {len(unsaved)} of them while a")
        # What is left is the script's: its last checkpoint, in a folder as it was. That the disk was free again before
        # the last save is not waited for.
        assert [entry.name for entry in checkpoint.parent.iterdir()] == ["ckpt.pt"]
        assert torch.load(checkpoint)["step"] == written[-1]
        assert str(checkpoint.parent) not in Path("/proc/self/mountinfo").read_text()

    @pytest.mark.nightly
    @pytest.mark.parametrize(
        ("on", "at"), [("rank=0", "step=12,phase=checkpoint"), ("rank=1", "step=10,phase=checkpoint")]
    )
    def test_a_trigger_in_a_save_that_did_not_come_is_advised_one_that_fires(self, tmp_path, restarting, on, at):
        run = run_chaos(tmp_path, "raise", "--at", at, "--on", on, command=restarting)
        assert run.exit_code == 5
        told = run.one("unverified").fields
        assert told["phase_steps"] == [[step, step] for step in range(5, 31, 5)]
        (tmp_path / "c.pt").unlink()
        advised = shlex.split(told["advice"])
        advised += [] if "--on" in advised else ["--on", on]
        (folder := tmp_path / "again").mkdir()
        again = run_chaos(folder, "raise", *advised, command=restarting)
        assert again.one("injected").fields["phase"] == "checkpoint"
        assert again.of("verified")
