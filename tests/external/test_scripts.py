"""Real scripts, no line changed: each is held where it was to be held, and its steps are counted as it counts them."""

import math
import signal
import sys
from pathlib import Path

import pytest

from tests.external.jobs import ROOT, SCRIPTS, STAY, python, run_job, torchrun

pytestmark = pytest.mark.external


def fields_of(event):
    return event.fields


def held_after(job):
    """By (rank, step, phase): the last line that the job had printed."""
    return {held.place: held.printed[-1] if held.printed else "" for held in job.held}


def test_a_plain_loop_is_held_before_each_phase(tmp_path):
    places = [(1, "data"), (1, "forward"), (3, "forward"), (3, "backward"), (4, "data"), (4, "optimizer")]
    places += [(5, "commit"), (2, "checkpoint")]
    job = run_job(tmp_path, python("plain.py", "6"), holds=[(0, *place) for place in places])
    assert (job.exit_code, job.stderr, job.hellos) == (0, "", [(0, 0, 1)])
    losses = {line.split()[1]: line for line in job.lines if line.startswith("step")}
    assert held_after(job) == {
        (0, 1, "data"): "",
        (0, 1, "forward"): "data 1",
        (0, 2, "checkpoint"): losses["2"],
        # After an evaluation, which is no part of a step.
        (0, 3, "forward"): "data 3",
        (0, 3, "backward"): "forward 3",
        (0, 4, "data"): losses["3"],
        (0, 4, "optimizer"): "backward 4",
        (0, 5, "commit"): "backward 5",
    }
    assert job.steps == [1, 2, 3, 4, 5, 6]
    for event in job.of("step_committed"):
        assert event.fields["loss"] == pytest.approx(float(losses[str(event.step)].split()[2]))
        assert event.fields["samples"] == 8
        assert (
            event.fields["began_monotonic"]
            < event.fields["committed_monotonic"]
            == pytest.approx(event.monotonic_seconds)
        )
    assert [event.kind for event in job.events][:: len(job.events) - 1] == ["rank_started", "rank_finished"]


@pytest.mark.nightly
def test_a_script_runs_to_the_same_end_without_an_injector(tmp_path):
    with_us = run_job(tmp_path, python("plain.py", "4"))
    alone = run_job(tmp_path, python("plain.py", "4"), environment={"CHAOS_AGENT": "", "CHAOS_RUN": ""})
    unreachable = run_job(tmp_path, python("plain.py", "4"), environment={"CHAOS_AGENT": "127.0.0.1:1"})
    assert with_us.steps == [1, 2, 3, 4]
    assert with_us.lines == alone.lines == unreachable.lines
    assert (alone.hellos, alone.stderr) == ([], "")
    assert unreachable.exit_code == 0
    assert unreachable.stderr.count("chaos: this process is no longer observed: ConnectionRefused") == 1


def test_the_death_of_the_injector_lets_go(tmp_path):
    job = run_job(tmp_path, python("plain.py", "4"), holds=[(0, 2, "forward")], is_server_to_die=True)
    assert (job.exit_code, job.stderr) == (0, "")
    assert held_after(job) == {(0, 2, "forward"): "data 2"}
    assert job.lines[-1].startswith("step 4")


def test_accumulation_and_the_workers_of_a_loader(tmp_path):
    job = run_job(tmp_path, python("plain.py", "5", "2", "2"), holds=[(0, 3, "forward"), (0, 4, "optimizer")])
    assert (job.exit_code, job.hellos, job.steps) == (0, [(0, 0, 1)], [1, 2, 3, 4, 5])
    assert held_after(job) == {(0, 3, "forward"): "data 3", (0, 4, "optimizer"): "backward 4"}
    # Two batches a step, and neither is taken for one.
    assert job.held[0].printed.count("data 3") == 1
    assert job.held[1].printed[-4:] == ("backward 4", "data 4", "forward 4", "backward 4")
    assert {event.fields["samples"] for event in job.of("step_committed")} == {16}


def test_steps_that_a_scaler_leaves_out_are_none_and_those_at_the_end_are_told(tmp_path):
    script = (
        "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0)\nfor step in range(8):\n"
        "    loss = model(torch.ones(1, 2)).sum() * (float('inf') if step in (2, 6, 7) else 1)\n"
        "    optimizer.zero_grad()\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n"
        "    scaler.update()\n    print(loss.item())\n"
    )
    job = run_job(tmp_path, [sys.executable, "-c", script])
    assert (job.exit_code, job.stderr, job.steps) == (0, "", [1, 2, 3, 4, 5])
    # Unscaled, and only those of the steps that were taken.
    losses = [event.fields["loss"] for event in job.of("step_committed")]
    assert losses == [loss for line in job.lines if math.isfinite(loss := float(line))]
    assert job.of("rank_finished")[0].fields["steps_left_out"] == 2


@pytest.mark.parametrize("when", ["late", pytest.param("early", marks=pytest.mark.nightly)])
def test_a_checkpoint_is_one_however_it_is_saved(tmp_path, when):
    pytest.importorskip("safetensors")
    holds = [(0, step, "checkpoint") for step in range(1, 7)]
    job = run_job(tmp_path, python("saving.py", when), holds=holds)
    assert job.exit_code == 0, job.stderr
    # Held before anything is saved; after the last step nothing is.
    said = {place: line.split()[:2] for place, line in held_after(job).items()}
    assert said == {(0, step, "checkpoint"): ["step", str(step)] for step in range(1, 6)}
    assert job.lines[0] == ("step 1 safetensors" if when == "early" else "step 1")
    written = job.of("checkpoint_written")
    assert [event.step for event in written] == [1, 2, 3, 4, 5, 6]
    # The last two beside the training: by an asynchronous call, and on a thread of the script.
    assert [event.fields["blocking_seconds"] > 0 for event in written] == [True] * 5 + [False]
    assert [event.fields["writing_seconds"] > 0 for event in written] == [False] * 4 + [True] * 2
    # A fork is another process. What a call reads within another call is part of that.
    assert [(Path(one["path"]).name, one["by"], "error" in one) for one in map(fields_of, job.of("state_loaded"))] == [
        ("model.pt", "torch", False),
        ("model.safetensors", "safetensors", False),
        ("model.safetensors", "safetensors", False),
        ("whole", "distributed_checkpoint", False),
        ("missing.pt", "torch", True),
    ]
    saved = {(Path(path).name, inode) for event in written for path, _, inode, *_ in event.fields["saved"]}
    read = {
        (Path(one["path"]).name, one["inode"]) for one in map(fields_of, job.of("state_loaded")) if "error" not in one
    }
    assert read <= saved
    begun = [Path(event.fields["path"]).name for event in job.of("checkpoint_begun")]
    assert begun == ["model.pt", "model.safetensors", "model.safetensors", "whole", "beside", "thread.pt", "thread.pt"]
    early, late = job.of("checkpoint_begun")[-2:]
    assert (early.step, late.step) == (6, 6)
    assert "parameters" not in early.fields and late.fields["parameters"]


@pytest.mark.nightly
def test_what_a_script_does_not_show_is_announced_with_what_it_shows(tmp_path):
    holds = [(0, 1, "forward"), (0, 3, "data"), (0, 3, "forward"), (0, 3, "backward"), (0, 3, "optimizer")]
    job = run_job(tmp_path, python("bare.py"), holds=holds)
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5])
    # That its first step was one shows when there is a second.
    assert list(held_after(job).values()) == ["ready 2", *["ready 3"] * 4]


def test_a_script_with_steps_of_its_own(tmp_path):
    job = run_job(tmp_path, python("explicit.py"), holds=[(0, 2, "forward"), (0, 3, "commit")], site=[ROOT])
    assert (job.exit_code, job.steps, job.stderr) == (0, [1, 2, 3, 4], "")
    assert list(held_after(job).values()) == ["step 1", "step 3"]
    assert [event.fields["loss"] for event in job.of("step_committed")] == [0.5, 1.0, 1.5, 2.0]
    assert [event.fields["samples"] for event in job.of("step_committed")] == [12] * 4


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("module", "begin 3"),
        pytest.param("function", "forward 3", marks=pytest.mark.nightly),
        pytest.param("method", "forward 3", marks=pytest.mark.nightly),
    ],
)
def test_a_compiled_model(tmp_path, how, place):
    # With warnings and recompilations as errors. Within a compiled function nothing is seen: `forward` is announced
    # with `backward`.
    job = run_job(tmp_path, python("compiled.py", how), holds=[(0, 3, "forward"), (0, 4, "backward")])
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5]), job.stderr
    assert list(held_after(job).values()) == [place, "forward 4"]


@pytest.mark.nightly
def test_ranks_that_restart_from_a_checkpoint_go_on_counting(tmp_path):
    at_three = {}

    def kill(held):
        """Rank 1, when rank 0 has come to the third step, too: it is told then, and its checkpoint is written."""
        if held.step != 3:
            return ()
        at_three[held.rank] = held.session.process
        if len(at_three) == 2:
            at_three[1].signal(signal.SIGKILL)
        return STAY if held.rank == 1 else ()

    command = torchrun(2, "ddp.py", "6", options=["--max-restarts", "4", "--monitor-interval", "0.1"])
    job = run_job(
        tmp_path,
        command,
        holds=[(0, 3, "forward"), (1, 3, "forward"), (0, 5, "forward")],
        on_hold=kill,
        # Else restarted ranks find their predecessors' addresses in the store, and most restarts fail (torch 2.13).
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    assert job.exit_code == 0, job.stderr
    assert job.hellos[:2] == [(0, 0, 1), (1, 0, 1)] or job.hellos[:2] == [(1, 0, 1), (0, 0, 1)]
    assert job.steps == [1, 2, 3, 4, 5, 6]
    epochs = [event.fields["epoch"] for event in job.of("step_committed")]
    assert epochs[:2] == [1, 1] and set(epochs[2:]) == {epochs[-1]} and epochs[-1] > 1
    assert epochs == [event.attempt for event in job.of("step_committed")]
    assert sum(line.startswith("rank 1 step 3 ") for line in job.lines) == 1
    at_five = [line for line in job.held[-1].printed if line.startswith("rank 0 ")]
    assert at_five[-1].startswith("rank 0 step 4 ")
    assert {event.fields["tokens"] for event in job.of("step_committed")} == {2 * 4 * 6}


@pytest.mark.nightly
def test_an_optimizer_that_wraps_another_steps_once(tmp_path):
    job = run_job(tmp_path, torchrun(2, "ddp.py", "4", "zero"), holds=[(1, 3, "optimizer")])
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4]), job.stderr
    assert job.of("step_committed")[-1].fields["optimizers"] == 1


def effect(name, **arguments):
    return {"type": "begin", "handle": 1, "effect": f"tests.external.effects:{name}", "arguments": arguments}


def test_an_effect_reaches_the_tensors_and_an_exception_that_a_fault_raises_is_the_scripts(tmp_path):
    """It is told when it is raised, with the line that it comes out of: its rank may be ended before, or catch it."""
    injected = {"exception": "RuntimeError", "message": "injected"}
    crash = {"type": "begin", "handle": 2, "effect": "chaos.in_process.crash:Raise", "arguments": injected}

    def act(held):
        if held.phase == "forward":
            return [effect("Look", value=1e6)]
        return [crash]

    holds = [(0, 3, "forward"), (0, 4, "backward")]
    job = run_job(tmp_path, python("plain.py", "5"), holds=holds, on_hold=act, site=[ROOT])
    answer, began = job.answers
    assert answer["type"] == began["type"] == "began", job.answers
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert list(answer["told"]["parameters"]) == names
    # `zero_grad` has set them to None.
    assert answer["told"]["gradients"] == []
    moments = [f"{name}.{moment}" for name in names for moment in ("exp_avg", "exp_avg_sq")]
    assert answer["told"]["optimizer"] == sorted(moments)
    first, second, third = (event.fields["loss"] for event in job.of("step_committed"))
    assert max(first, second) < 100 < 1e6 < third
    assert job.exit_code == 1
    assert "RuntimeError: injected" in job.stderr and "loss.backward()" in job.stderr
    assert job.steps == [1, 2, 3] and not job.of("rank_finished")
    lines = (SCRIPTS / "plain.py").read_text().splitlines()
    raised, uncaught = job.of("rank_raised")
    for event in (raised, uncaught):
        told = event.fields
        assert (event.step, told["last_step"], told["message"], told["is_injected"]) == (4, 3, "injected", True)
        assert "backward()" in lines[told["line"] - 1]


# ---- the start of Python ----


def test_without_torch_nothing_happens_and_another_sitecustomize_runs(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = 'ran'\nprint('theirs', __name__)\n")
    job = run_job(tmp_path, python("quiet.py"), site=[theirs])
    assert (job.exit_code, job.stderr, job.hellos) == (0, "", [])
    assert job.lines == ["theirs sitecustomize", "[]", str(theirs / "sitecustomize.py")]


def test_a_whole_step_that_is_compiled_is_followed(tmp_path):
    """Its graph breaks at the backward pass, and what is called there is not to be compiled."""
    script = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step(x):
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for _ in range(5):
    step(torch.ones(2, 4))
"""
    job = run_job(tmp_path, [sys.executable, "-c", script])
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5]), job.stderr
    assert "chaos" not in job.stderr
