"""What is told of frameworks that count, load and group in their own ways, on the real libraries."""

import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.external.jobs import SCRIPTS, counts_of, run_job, torchrun

pytestmark = pytest.mark.external


def sums_of(job, step):
    """By rank what it held after `step`: tensor -> sum of its bits."""
    names, found = {}, {}
    for event in job.of("state_checksums"):
        names[event.rank] = event.fields.get("tensors", names.get(event.rank))
        sums = event.fields["sums"]
        if event.step == step:
            own = [sums[start : start + 8] for start in range(0, len(sums), 8)]
            found[event.rank] = dict(zip(names[event.rank], own, strict=True))
    return found


def seen_of(job, step):
    """What each rank's step was made of, by rank."""
    found = {event.rank: event.fields for event in job.of("step_seen") if event.step == step}
    return [tuple(one[key] for _, one in sorted(found.items())) for key in ("batches", "rates", "random", "draws")]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """FSDP2 with torch.distributed.checkpoint: a job of six steps, the fourth with a checkpoint, and its folder."""
    folder = tmp_path_factory.mktemp("sharded")
    first = run_job(folder, torchrun(2, "dcp.py", "6"))
    assert (first.exit_code, first.steps) == (0, [1, 2, 3, 4, 5, 6]), first.stderr
    return first, folder


def test_the_step_that_only_makes_a_state_to_load_into_is_none(tmp_path, sharded):
    """A restored training goes on counting where it was."""
    first, folder = sharded
    shutil.copytree(folder / "checkpoints", tmp_path / "checkpoints")
    resumed = run_job(tmp_path, torchrun(2, "dcp.py", "9"), holds=[(1, 5, "forward"), (0, 7, "optimizer")])
    assert (resumed.exit_code, resumed.steps) == (0, [5, 6, 7, 8, 9]), resumed.stderr
    assert sorted(held.place for held in resumed.held) == [(0, 7, "optimizer"), (1, 5, "forward")]
    counted = {event.rank: (event.step, event.fields["count_kept_by"]) for event in resumed.of("steps_counted")}
    assert counted == dict.fromkeys((0, 1), (5, "optimizer"))
    (saved, *_) = [place for event in resumed.of("checkpoint_written") for place in event.fields["saved"]]
    assert Path(saved[0]) == tmp_path / "checkpoints/8"
    # Shards are nobody else's.
    assert sums_of(first, 2)[0].keys() == sums_of(first, 2)[1].keys()
    assert sums_of(first, 2)[0] != sums_of(first, 2)[1]


def test_shards_are_found_again_by_each_rank(tmp_path, sharded):
    first, folder = sharded
    shutil.copytree(folder / "checkpoints", tmp_path / "checkpoints")
    later = run_job(tmp_path, torchrun(2, "dcp.py", "7"), states_of=first)
    assert (later.exit_code, later.steps) == (0, [5, 6, 7]), later.stderr
    assert counts_of(later) == {0: (5, "parameters", 4), 1: (5, "parameters", 4)}
    # What a rank begins with is what it has saved, its optimizer's moments and count too.
    parts = ("parameters", "optimizer", "optimizer_steps")
    saved = {event.rank: [event.fields[part] for part in parts] for event in first.of("checkpoint_begun")}
    begun = {event.rank: [event.fields[part] for part in parts] for event in later.of("training_entered")}
    assert begun == saved and begun[0] != begun[1]
    assert {event.fields["path"] for event in later.of("state_loaded")} == {str(tmp_path / "checkpoints/4")}
    formed = later.of("process_group_formed")
    assert {(event.rank, event.fields["backend"], event.fields["world_size"]) for event in formed} == {
        (0, "gloo", 2),
        (1, "gloo", 2),
    }
    # It does not restore the random state, and draws the batch of its first step again.
    assert seen_of(later, 5)[:2] == seen_of(first, 1)[:2] != seen_of(first, 5)[:2]


def test_replicas_tell_what_they_hold_in_common(tmp_path):
    job = run_job(tmp_path, torchrun(2, "ddp.py", "6"))
    assert job.exit_code == 0, job.stderr
    sums = sums_of(job, 2)
    assert sums.keys() == {0, 1} and sums[0] == sums[1]
    assert {"0.weight", "1.weight", "1.bias", "1.bias.exp_avg"} <= sums[0].keys()
    # The last step is looked at, whatever the interval: of the parameters, when the model is given up.
    last = sums_of(job, 6)
    assert last[0]["0.weight"] == last[1]["0.weight"] != sums[0]["0.weight"]


@pytest.mark.nightly
def test_replica_groups_of_torchft_are_told_apart(tmp_path):
    pytest.importorskip("torchft")
    lighthouse = shutil.which("torchft_lighthouse", path=str(Path(sys.executable).parent))
    assert lighthouse is not None
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [str(one.getsockname()[1]) for one in sockets]
    job = run_job(tmp_path, ["bash", str(SCRIPTS / "torchft.sh"), sys.executable, lighthouse, *ports])
    assert job.exit_code == 0, job.stderr
    assert {hello[:2] for hello in job.hellos} == {(0, 0), (1, 1)}
    by_group = {
        group: [event.step for event in job.of("step_committed") if event.fields["replica"] == group]
        for group in (0, 1)
    }
    assert by_group == {0: [*range(1, 9)], 1: [*range(1, 9)]}
    assert {event.fields["count_kept_by"] for event in job.of("steps_counted")} == {"torchft"}
    assert sums_of(job, 2)[0] == sums_of(job, 2)[1]
