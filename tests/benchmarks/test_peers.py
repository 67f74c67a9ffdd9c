import json
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from dataclasses import replace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._machine import Machine, confined_to
from benchmarks.failover import PEERS_JOB, experiment_of
from benchmarks.peers import torchft_ddp, torchrun_ddp
from benchmarks.peers.comparison import (
    Outcome,
    Way,
    has_failures,
    num_not_slower,
    num_within_aim,
    outcome_of,
    recoveries,
    report,
    to_document,
)
from benchmarks.peers.job import PeerJob
from benchmarks.peers.processes import ROOT, run_peer, running, watch
from benchmarks.peers.records import Attempt, Kill, Recorder, find_recovery, read_records, usual_step_seconds
from benchmarks.peers.rounds import Entry, peer_entries, run_rounds
from harness.run.preparation import check
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.model.data import samples_of_step

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
KILL = Kill(rank=1, step=8, at_seconds=100.0)
OURS = Way("ours, kill-process", "ours", "as it is")
QUICK, SLOW = Way("torchft, quick", "torchft", "1 s"), Way("torchft, recommended", "torchft", "5 s")
RESTART = Way("torchrun, checkpoint every 1", "torchrun", "saves often")


def attempt(step, began, committed, *, rank=0, restart=0, num_ranks=4):
    return Attempt(rank, restart, step, began, committed, num_ranks, 5.0)


def outcome(way, round_number=0, seconds=1.0, step_seconds=0.2, failure=None):
    return Outcome(way.name, round_number, "rank=1", True, seconds, step_seconds, failure, others_cores=0.1)


def job_of(folder, num_ranks=2, **config):
    values = {"nodes": 1, "gpus_per_node": num_ranks, "data_parallel": num_ranks, "pipeline": 1, "steps": 6} | config
    return PeerJob(JobConfig(**values), victim=1, fault_step=4, folder=folder, settings={})


# ---- records ----


@pytest.mark.unit
def test_the_recovery_is_the_first_new_commit_of_any_rank():
    attempts = [attempt(8, 100.1, 102.0), attempt(8, 100.2, 101.5, rank=2), attempt(9, 101.5, 101.9, rank=2)]
    found = find_recovery(KILL, attempts)
    assert found.first == attempts[1]
    assert found.seconds == pytest.approx(1.5)


@pytest.mark.unit
def test_a_step_in_flight_that_commits_is_no_recovery():
    assert find_recovery(KILL, [attempt(8, 99.9, 100.5)]).seconds is None


@pytest.mark.unit
def test_doing_again_what_was_lost_is_no_recovery():
    redone = [attempt(step, 105.0 + step, 105.5 + step, restart=1) for step in (6, 7)]
    assert find_recovery(KILL, redone).seconds is None
    found = find_recovery(KILL, [*redone, attempt(8, 120.0, 121.0, restart=1)])
    assert (found.seconds, found.num_redone) == (21.0, 2)


@pytest.mark.unit
def test_an_attempt_that_was_given_up_is_no_commit_and_is_counted():
    found = find_recovery(KILL, [attempt(8, 99.9, None), attempt(8, 101.0, None), attempt(8, 103.0, 104.0)])
    assert (found.seconds, found.num_given_up) == (4.0, 2)
    assert find_recovery(KILL, [attempt(8, 101.0, None)]).first is None


@pytest.mark.unit
def test_the_usual_step_is_that_before_the_kill_on_a_survivor():
    survivor = [attempt(step, 90.0 + step, 91.0 + step, rank=2) for step in range(1, 8)]
    victim = [attempt(step, 80.0 + step / 2, 80.5 + step / 2, rank=1) for step in range(1, 8)]
    afterwards = [attempt(8 + i, 110.0 + 5 * i, 115.0 + 5 * i, rank=2) for i in range(20)]
    assert usual_step_seconds(KILL, [*victim, *survivor, *afterwards]) == pytest.approx(1.0)
    assert usual_step_seconds(KILL, victim) is None


@pytest.mark.unit
def test_what_is_written_is_read_and_a_line_in_the_making_is_not(tmp_path):
    Recorder(tmp_path, 0, 1).attempt(3, 1.0, None, 4, 5.5)
    with (tmp_path / "0-1.jsonl").open("a") as file:
        file.write('{"attempt": {"ra')
    assert read_records(tmp_path) == (None, [Attempt(0, 1, 3, 1.0, None, 4, 5.5)])


@pytest.mark.unit
def test_the_victim_writes_down_when_and_dies_of_sigkill(tmp_path):
    script = (
        f"from pathlib import Path; from benchmarks.peers.records import Recorder; "
        f"Recorder(Path({str(tmp_path)!r}), 3, 0).kill(8); print('alive')"
    )
    before = time.monotonic()
    victim = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (victim.returncode, victim.stdout) == (-signal.SIGKILL, ""), victim.stderr
    kill, attempts = read_records(tmp_path)
    assert (kill.rank, kill.step, attempts) == (3, 8, [])
    assert before < kill.at_seconds < time.monotonic()


# ---- the job ----


@pytest.mark.unit
def test_the_job_travels_in_the_environment(tmp_path):
    job = replace(job_of(tmp_path), settings={"checkpoint_steps": 2})
    assert PeerJob.from_environment(job.to_environment()) == job


@pytest.mark.unit
@given(num_ranks=st.integers(1, 8), size=st.integers(1, 4), count=st.integers(1, 4), step=st.integers(1, 1000))
def test_the_ranks_share_out_the_samples_of_our_step(num_ranks, size, count, step):
    job = job_of(ROOT, num_ranks, microbatch_size=size, microbatches_per_replica=count)
    shares = [samples for rank in range(num_ranks) for samples in job.samples_of_rank(step, rank)]
    assert {len(samples) for samples in shares} == {size}
    assert [sample for samples in shares for sample in samples] == list(
        samples_of_step(step, job.config.samples_per_step)
    )


@pytest.mark.unit
def test_our_side_is_as_the_peers_can_be():
    experiment = experiment_of("kill-process", 0, quick=True, job=PEERS_JOB)
    config, incidents = check(experiment)
    assert (config.pipeline, config.dilation_ratio, config.data_parallel) == (1, 1.0, 8)
    assert len(incidents[0].target.ranks) == 1


@pytest.mark.unit
def test_the_mean_of_the_replicas_gradients_is_that_of_the_whole_batch(tmp_path):
    import torch

    from benchmarks.peers.replica import Replica

    num_threads = torch.get_num_threads()
    try:
        shared, whole = job_of(tmp_path, 2), job_of(tmp_path, 1, microbatches_per_replica=6)
        replicas = [Replica(shared, 0), Replica(shared, 1), Replica(whole, 0)]
        losses = [replica.compute(3, replica.model, nullcontext) for replica in replicas]
        gradients = [replica.gradients() for replica in replicas]
    finally:
        torch.set_num_threads(num_threads)
    assert sum(losses[:2]) / 2 == pytest.approx(losses[2], rel=1e-6)
    torch.testing.assert_close((gradients[0] + gradients[1]) / 2, gradients[2])
    assert not torch.equal(gradients[0], gradients[1])
    replicas[0].take_gradients(gradients[2])
    assert torch.equal(replicas[0].gradients(), gradients[2])


# ---- processes ----


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = [
    sys.executable,
    "-c",
    f"import subprocess, time; subprocess.Popen({SLEEPER!r}, start_new_session=True); time.sleep(600)",
]


def descendants(count, besides):
    deadline = time.monotonic() + 120
    while len(found := set(psutil.Process().children(recursive=True)) - besides) < count:
        assert time.monotonic() < deadline, found
    return found


@pytest.mark.unit
def test_nothing_is_left_however_it_ends(tmp_path):
    # Other tests of this process may have left some.
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(KeyboardInterrupt), running([PARENT, SLEEPER], {}, tmp_path):
        found = descendants(3, before)
        raise KeyboardInterrupt
    _, alive = psutil.wait_procs(found, timeout=120)
    assert not alive


@pytest.mark.unit
def test_nothing_is_left_of_a_benchmark_that_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, psutil, signal
        from pathlib import Path
        from benchmarks.peers.processes import running
        with running([{SLEEPER!r}], {{}}, Path({str(tmp_path)!r})) as (process,):
            while "time.sleep" not in " ".join(psutil.Process(process.pid).cmdline()[:3]):
                continue
            print(process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    try:
        psutil.Process(int(killed.stdout)).wait(timeout=120)
    except psutil.NoSuchProcess:
        return


@pytest.mark.unit
def test_processes_that_all_end_early_are_a_failure(tmp_path):
    with running([[sys.executable, "-c", "raise SystemExit(3)"]], {}, tmp_path) as processes:
        assert watch(processes, tmp_path, last_step=6) == "its processes ended with [3]"


# ---- the comparison ----


@pytest.mark.unit
def test_every_round_runs_every_way_and_none_is_always_first(tmp_path, capsys):
    def entry(way):
        return Entry(way, lambda round_number, folder: outcome(way, round_number, seconds=None))

    ways = [OURS, QUICK, RESTART]
    with confined_to(1) as cores:
        outcomes = run_rounds([entry(way) for way in ways], 3, tmp_path, cores)
    assert [o.round_number for o in outcomes] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [o.way for o in outcomes[::3]] == [way.name for way in ways]
    assert all({o.way for o in outcomes[i : i + 3]} == {way.name for way in ways} for i in (0, 3, 6))
    assert all(o.others_cores is not None and o.others_cores != 0.1 for o in outcomes)
    assert "round 3 of 3, torchrun, checkpoint every 1, rank=1: never" in capsys.readouterr().err


@pytest.mark.unit
def test_a_peer_that_does_not_come_back_never_recovers():
    lost = outcome_of(RESTART, 0, KILL, [attempt(7, 98.0, 99.0)], "its processes ended with [1]")
    assert lost.failure == "did not recover: its processes ended with [1]"
    outcomes = [outcome(OURS), lost]
    assert recoveries(outcomes, RESTART).to_dict() == {
        "median": None,
        "min": None,
        "max": None,
        "n": 1,
        "values": [None],
    }
    text = report(outcomes, [OURS, RESTART], MACHINE, ["job: this"], [])
    assert next(line for line in text.splitlines() if line.startswith(RESTART.name)).split()[-7:-3] == [
        *("never", "never", "never", "1")
    ]
    assert "round 0, torchrun, checkpoint every 1, rank=1: FAILED: did not recover" in text
    assert not has_failures(outcomes, [OURS, RESTART])
    assert has_failures([outcome(OURS, failure="it hung")], [OURS])


@pytest.mark.unit
def test_without_a_kill_nothing_is_said_about_recovery():
    unhurt = outcome_of(QUICK, 0, None, [], "its processes ended with [1]")
    assert recoveries([unhurt], QUICK).num_values == 0
    assert unhurt.failure == "there was no kill: its processes ended with [1]"
    assert has_failures([unhurt], [QUICK])


@pytest.mark.unit
def test_ours_is_held_against_its_aims():
    outcomes = [
        *(outcome(OURS, 0, 0.6, 0.2), outcome(QUICK, 0, 1.1), outcome(SLOW, 0, 5.0)),
        *(outcome(OURS, 1, 0.7, 0.2), outcome(QUICK, 1, 0.65), outcome(SLOW, 1, None)),
        *(outcome(OURS, 2, None, 0.2), outcome(QUICK, 2, None), outcome(SLOW, 2, None)),
    ]
    assert num_within_aim(outcomes, OURS) == (1, 3)
    assert num_not_slower(outcomes, OURS, [QUICK, SLOW]) == (1, 3)
    text = report(outcomes, [OURS, QUICK, SLOW], MACHINE, [], [])
    assert "aim: ours, kill-process within 2 usual steps + 200 ms: 1 of 3 runs" in text
    assert "aim: ours, kill-process never slower than torchft: 1 of 3 rounds" in text


@pytest.mark.unit
def test_without_torchft_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(torchft_ddp, "is_installed", lambda: False)
    entries, missing = peer_entries(lambda seed: experiment_of("kill-process", seed, quick=True), 5)
    assert {entry.way.group for entry in entries} == {"torchrun"}
    assert missing == ["torchft is not installed and was left out: pip install torchft -c constraints.txt"]
    text = report([outcome(OURS)], [OURS], MACHINE, [], missing)
    assert missing[0] in text and "never slower" not in text


@pytest.mark.unit
def test_the_document_is_plain_json():
    outcomes = [outcome(OURS), outcome(QUICK, seconds=None)]
    document = json.loads(json.dumps(to_document(outcomes, [OURS, QUICK], MACHINE, {"steps": 6}, []), allow_nan=False))
    assert document["ways"]["ours, kill-process"]["recovery_in_steps"]["median"] == pytest.approx(5.0)
    assert document["ways"]["torchft, quick"]["recovery_seconds"]["values"] == [None]
    assert [run["others_cores"] for run in document["runs"]] == [0.1, 0.1]


# ---- real peers ----


@pytest.mark.nightly
def test_torchrun_restarts_from_its_checkpoint(tmp_path):
    peer = torchrun_ddp.peer("torchrun", checkpoint_steps=2)
    job = replace(job_of(tmp_path / "run"), settings=peer.settings)
    kill, attempts, failure = run_peer(peer, job)
    assert failure is None, (tmp_path / "run/process-0.log").read_text()
    assert (kill.rank, kill.step) == (job.victim, job.fault_step)
    recovery = find_recovery(kill, attempts)
    # Killed in step 4, with a checkpoint of step 2.
    assert (recovery.first.step, recovery.first.restart, recovery.num_redone) == (4, 1, 1)
    assert recovery.seconds > 0
    first, again = ({a.rank: a.loss for a in attempts if (a.step, a.restart) == (3, i)} for i in (0, 1))
    assert first == again and first.keys() == {0, 1}
    assert max(a.step for a in attempts) == job.config.steps


@pytest.mark.nightly
@pytest.mark.skipif(not torchft_ddp.is_installed(), reason=f"needs torchft: {torchft_ddp.INSTALL}")
def test_torchft_goes_on_in_the_same_processes(tmp_path):
    peer = torchft_ddp.peer("torchft", torchft_ddp.QUICK)
    job = replace(job_of(tmp_path / "run", 3), settings=peer.settings)
    kill, attempts, failure = run_peer(peer, job)
    assert failure is None, "\n".join(path.read_text() for path in (tmp_path / "run").glob("*.log"))
    recovery = find_recovery(kill, attempts)
    assert recovery.first.step == job.fault_step
    assert recovery.first.num_ranks == 2
    assert {a.num_ranks for a in attempts if a.began_seconds < kill.at_seconds and a.step < job.fault_step} == {3}
    assert max(a.step for a in attempts) == job.config.steps
