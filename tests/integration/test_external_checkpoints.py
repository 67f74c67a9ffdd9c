"""Checkpoints of an external job: a fault within a save, what is left of it, and what the next attempt loads."""

import sys
from pathlib import Path

import pytest

from tests.integration.runs import run_chaos

pytestmark = pytest.mark.external

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")


@pytest.fixture
def restarting(tmp_path, monkeypatch):
    """Two ranks of a script under torchrun, which starts them again once."""
    # See tests/integration/test_external.py.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    def command(script, steps):
        own = (str(HERE / script), str(steps), str(tmp_path / "c.pt"))
        return (*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", *own)

    return command


def checked(run, step):
    """What was found of the checkpoint of a step, in the order in which it was read."""
    return [event.fields for event in run.events if event.kind == "checkpoint_checked" and event.step == step]


def test_a_rank_is_killed_in_the_middle_of_a_save_in_place(tmp_path, restarting):
    command = restarting("in_place_saving.py", 20)
    at = ("--on", "rank=0", "--at", "step=10,after=1kB", "--gate", "checkpoints_unusable == 0")
    run = run_chaos(tmp_path, "kill-process", *at, command=command)
    assert run.exit_code == 1, run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    path, size = tmp_path / "c.pt", (tmp_path / "c.pt").stat().st_size
    # The byte at which it was stopped is the one that is left.
    assert incident["save"] == {"path": str(path), "offset": size, "num_bytes": size}
    assert size >= 1000
    for found in checked(run, 10):
        assert (found["is_finished"], found["whole"]) == (False, False)
        assert [one["code"] for one in found["damage"]] == ["no_end"]
    assert checked(run, 5)[0]["found"] == "overwritten"
    (load,) = run.summary["attempt_loads"]
    assert (load["attempt"], load["step"], load["path"]) == (2, None, None)
    assert {(one["path"], one["step"]) for one in load["failed"]} == {(str(path), 10)}
    assert (run.summary["checkpoints_saved"], run.summary["checkpoints_unusable"]) == (1, 1)
    assert "newest_usable_step" not in incident
    assert "checkpoint_unusable" in [one["code"] for one in run.summary["caveat_codes"]]


def test_damage_is_read_once_the_job_was_ended_for_it(tmp_path, restarting):
    command = restarting("external_training.py", 20)
    run = run_chaos(tmp_path, "flip-checkpoint-bit", "--at", "step=13", "--then", "kill-job", command=command)
    damaging, ending = run.summary["incidents"]
    assert (damaging["fault"], ending["fault"]) == ("flip-checkpoint-bit", "kill-job")
    assert (damaging["read_by_incident"], ending["reads_damage_of"]) == (1, [0])
    # Nothing was saved in between.
    assert ending["step"] == damaging["step"] == 13
    read = checked(run, 10)[0]
    assert (read["moment"], read["whole"]) == ("attempt_ended", False)
    (load,) = run.summary["attempt_loads"]
    assert load["damaged_by"] == 0
    assert (load["step"] == 10) != bool(load["failed"])


@pytest.mark.parametrize(
    ("moment", "loaded"),
    [
        pytest.param("after=file", 5, marks=pytest.mark.nightly),
        pytest.param("after=rename", 10, marks=pytest.mark.nightly),
    ],
)
def test_a_save_that_is_renamed_when_it_is_whole(tmp_path, restarting, moment, loaded):
    command = restarting("external_training.py", 20)
    run = run_chaos(tmp_path, "kill-process", "--on", "rank=0", "--at", f"step=10,{moment}", command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    (load,) = run.summary["attempt_loads"]
    assert (load["step"], load["failed"]) == (loaded, [])
    assert run.summary["checkpoints_unusable"] == 0
    assert run.summary["newest_usable_step"] == 20
