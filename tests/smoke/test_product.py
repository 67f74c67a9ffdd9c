"""The whole product in about ten real runs: what every change has to leave whole."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.undo.ledger import read_ledger
from harness.network.machine import why_no_networks
from tests.integration.runs import (
    PATIENT,
    REPOSITORY,
    RUN_TIMEOUT_SECONDS,
    SLOW_UNTIL_BACK,
    SMALL,
    ChaosRun,
    Finished,
    assert_holders_agree,
    assert_nothing_left,
    assert_sound,
    assert_survived,
    environment_of_run,
    read_log,
    read_run,
    run_chaos,
    saved_before,
)
from tests.shared import made_once

pytestmark = pytest.mark.smoke

STEPS = 24
# For the command's own process alone.
DO_NOTHING = """import sys
if sys.orig_argv[1] == '-c':
    from chaos.faults.process.kill import KillProcess

    async def do_nothing(self, act, host):
        pass

    KillProcess.apply = do_nothing
    KillProcess.verify_timeout_seconds = 0.5
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
TRAINING = str(REPOSITORY / "tests/integration/external_training.py")


def chaos(folder: Path, out: Path, *arguments: str) -> tuple[int, str, str]:
    """A subcommand on the runs in `out`: (exit code, standard output, standard error)."""
    with ChaosRun(folder, arguments, out=out, patch=PATIENT) as run:
        code = run.wait()
        assert "Traceback" not in run.stderr, run.stderr
        return code, run.stdout, run.stderr


# ---- a node is lost and comes back, and what can be had of that run afterwards ----


def lose_a_node(folder: Path) -> None:
    """The main job, small: with a twin, the default strategy, and a file for CI."""
    job = ("--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--steps", str(STEPS), "--seed", "3")
    fault = ("kill-node", "--at", "step=10", "--on", "node=1", "--repair", "5steps", "--gate", "loss_deviation < 5%")
    run_chaos(folder, *fault, *job, "--junit", str(folder / "junit.xml"), patch=PATIENT + SLOW_UNTIL_BACK)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the main job, run once."""
    return made_once(tmp_path_factory, "lost-node", lose_a_node)


def finished(stored: Path) -> Finished:
    (log,) = stored.glob("out/kill-node/*/events.jsonl")
    summary = json.loads((log.parent / "summary.json").read_text())
    return read_run(log.parent, summary["exit_code"])


def test_a_node_is_lost_at_its_step_and_comes_back_and_no_step_is_lost(stored):
    run = finished(stored)
    assert_survived(run, STEPS, at=10)
    assert (run.one("injected").fields["nodes"], run.one("injected").fields["ranks"]) == ([1], [2, 3])
    assert 0 <= run.summary["loss_deviation_ratio"] < 0.05
    assert len(run.of("step_committed", "twin")) == STEPS
    cases = ElementTree.parse(stored / "junit.xml").getroot().iter("testcase")
    assert "loss_deviation < 5%" in " ".join(str(case.get("name")) for case in cases)


def test_its_report_is_made_again_from_the_log(stored, tmp_path):
    run = finished(stored)
    page = tmp_path / "page.html"
    code, text, stderr = chaos(tmp_path, stored / "out", "report", str(run.folder), "--json", "--html", str(page))
    assert code == 0, stderr
    assert json.loads(text) == run.summary
    html = page.read_text()
    # But for where it links to from there.
    links = re.compile(r'href="[^"]*"')
    assert links.sub("", html) == links.sub("", (run.folder / "report.html").read_text())
    assert "<svg" in html
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html), "it loads something from elsewhere"
    code, text, _ = chaos(tmp_path / "runs", stored / "out", "runs", "--json")
    assert [(listed["fault"], listed["verdict"]) for listed in json.loads(text)][-1] == ("kill-node", "pass")


def test_its_figures_are_served_to_prometheus(stored, tmp_path):
    run = finished(stored)
    command = [sys.executable, "-m", "mecefo_chaos", "serve", str(run.folder)]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment_of_run("serve", tmp_path),
    )
    try:
        assert process.stdout is not None
        (url,) = re.findall(r"http://\S+", process.stdout.readline())
        with urllib.request.urlopen(url, timeout=RUN_TIMEOUT_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        process.send_signal(signal.SIGTERM)
        assert process.wait(RUN_TIMEOUT_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
    told = {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    assert told["training_step"] == STEPS
    assert told['chaos_verdict{verdict="pass"}'] == 1
    assert told['chaos_faults_total{fault="kill-node",outcome="verified"}'] == 1
    assert told["training_goodput_ratio"] == pytest.approx(run.summary["goodput_ratio"], abs=0.02)
    recovery = told['chaos_recovery_seconds{fault="kill-node",phase="recovery"}']
    assert recovery == pytest.approx(run.summary["incidents"][0]["recovery_seconds"], abs=1e-3)


def test_it_is_replayed_and_compared_with_what_it_repeats(stored, tmp_path):
    run = finished(stored)
    reference = f"kill-node/{run.folder.name}"
    code, text, stderr = chaos(tmp_path / "replay", stored / "out", "replay", reference, "--json")
    assert code == 0, stderr
    again = json.loads(text)
    assert again["steps_committed"] == STEPS
    assert (again["incidents"][0]["step"], again["incidents"][0]["ranks"]) == (10, [2, 3])
    (log,) = (stored / "out").glob("kill-node-replay/2*/events.jsonl")
    replayed = f"kill-node-replay/{log.parent.name}"
    figure = ("--figure", "steps_lost", "--anyway", "--json")
    code, text, stderr = chaos(tmp_path / "compare", stored / "out", "compare", replayed, reference, *figure)
    assert code == 0, stderr
    (sample,) = json.loads(text)["samples"]
    (change,) = (change for change in sample["changes"] if change["figure"] == "steps_lost")
    assert (change["now"], change["baseline"], change["word"]) == (0, 0, "within noise")


# ---- other faults, other jobs ----


@pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}")
def test_a_slow_link_is_slow_and_not_dead(tmp_path):
    slow = ("slow-link", "--on", "link=0-2", "-p", "delay=60ms", "--at", "step=5", "--for", "3steps")
    run = run_chaos(tmp_path, *slow, "--steps", "12", *SMALL, patch=PATIENT)
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, 12)
    assert run.of("detected") == []
    # In the first one ranks were held; each of the others goes over the link and back twice.
    during = [event.fields for event in run.of("step_committed") if 5 < event.step < 8]
    assert len(during) == 2
    assert min(step["committed_monotonic"] - step["began_monotonic"] for step in during) >= 3.8 * 0.06


def test_a_gradient_that_is_no_number_is_computed_again_and_its_rank_named(tmp_path):
    fault = ("set-nan", "-p", "where=gradients", "--on", "rank=3", "--at", "step=5,phase=backward")
    run = run_chaos(tmp_path, *fault, "--steps", "12", *SMALL, patch=PATIENT)
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    (rejected,) = run.of("step_unfit")
    assert (rejected.step, rejected.fields["verdict"], rejected.fields["suspects"]) == (5, "repeat", [3])
    assert run.summary["steps_committed"] == 12
    assert_holders_agree(run)


def test_all_ranks_start_again_from_a_checkpoint(tmp_path):
    fault = ("kill-process", "--at", "step=8", "--on", "rank=1", "--repair", "200ms")
    job = ("--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--no-twin", "--steps", "12")
    patch = PATIENT + saved_before(8, 5)
    run = run_chaos(tmp_path, *fault, *job, "--strategy", "checkpoint", "--checkpoint-every", "5", patch=patch)
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert [event.step for event in run.of("checkpoint_restored")] == [5]
    assert (run.summary["steps_committed"], run.summary["steps_repeated"], run.summary["steps_lost"]) == (12, 2, 2)
    assert_holders_agree(run)


def test_a_script_under_torchrun_loses_a_rank_and_is_started_again(tmp_path, monkeypatch):
    # torch 2.13: the store of the first attempt is used again with all that is in it, and a rank of the second that
    # comes first finds the other one's old address there.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    command = (*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", TRAINING, "20", str(tmp_path / "c.pt"))
    run = run_chaos(tmp_path, "kill-process", "--at", "step=13", "--on", "rank=1", command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["ranks"], incident["recovery_attempt"], incident["recovery_step"]) == ([1], 2, 11)
    assert (run.summary["attempts"], run.summary["steps_committed"], run.summary["steps_repeated"]) == (2, 20, 2)
    assert run.one("injected").step == 13
    assert [event.fields["world_size"] for event in run.of("attempt_started")] == [2, 2]
    started = [event.fields for event in run.of("process_started") if event.fields.get("role") == "rank"]
    ranks = sorted((fields["started_rank"], fields["rank_attempt"]) for fields in started)
    assert ranks == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [event.step for event in run.of("step_committed")] == [*range(1, 13), *range(11, 21)]


# ---- ends that are no passes ----


def test_a_fault_that_does_nothing_is_inconclusive(tmp_path):
    kill = ("kill-process", "--on", "role=coordinator", "--at", "step=4", "--steps", "8")
    run = run_chaos(tmp_path, *kill, *SMALL, patch=PATIENT + DO_NOTHING)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    assert "still running" in run.summary["incidents"][0]["unverified_reason"]
    assert run.summary["steps_committed"] == 8, "the held ranks were not let go"


@pytest.mark.parametrize("is_watched", [True, False], ids=["watchdog", "heal"])
def test_what_a_killed_command_leaves_is_undone(tmp_path, is_watched):
    pause = ("pause-process", "--at", "step=3", "--on", "rank=1", "--for", "1h", "--steps", "100000", *SMALL)
    with ChaosRun(tmp_path, ["run", *pause], patch=PATIENT) as run:
        run.wait_for("verified")
        ledger = run.folder / "ledger.jsonl"
        assert read_ledger(ledger).pending
        if is_watched:
            run.process.kill()
        else:
            (entry,) = (tmp_path / "state").glob("*.json")
            # One that still runs would start another watchdog.
            run.process.send_signal(signal.SIGSTOP)
            subprocess.run(["kill", "-KILL", str(json.loads(entry.read_text())["watchdog"][0])], check=True)
            run.process.kill()
        run.wait()
        if not is_watched:
            heal = [
                sys.executable,
                "-m",
                "mecefo_chaos",
                "heal",
                "--json",
                "--out",
                str(run.out),
            ]
            done = subprocess.run(heal, capture_output=True, env=environment_of_run(run.mark, tmp_path), check=True)
            (healed,) = json.loads(done.stdout)["runs"]
            assert (healed["clean"], [undone["incident"] for undone in healed["undone"]]) == (True, [0])
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"))
        assert read_ledger(ledger).pending == ()


def test_an_interrupted_run_ends_in_order(tmp_path):
    kill = ("kill-node", "--at", "step=100000", "--on", "node=1", "--steps", "100000", *SMALL)
    with ChaosRun(tmp_path, ["run", *kill], patch=PATIENT) as run:
        run.wait_for("step_committed", step=2)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 2, run.stderr
        events = read_log(run.folder / "events.jsonl")
        assert_nothing_left(run, events)
        assert json.loads((run.folder / "summary.json").read_text())["verdict"] == "halted"
    assert events[-1].kind == "run_ended"
