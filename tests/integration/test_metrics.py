"""Prometheus reads a run through a failure, and what it stored is what the run's log says."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
import yaml

from harness.exporter.job import JobExporter
from tests.integration.runs import (
    PATIENT,
    REPOSITORY,
    SLOW_UNTIL_BACK,
    SMALL,
    ChaosRun,
    assert_nothing_left,
    environment_of_run,
    read_run,
    waiting_at,
)
from tests.manual.documents import Document, blocks
from tests.prometheus import Prometheus, needs_prometheus

pytestmark = pytest.mark.integration

TIMEOUT_SECONDS = 300.0
SCRAPE_SECONDS = 0.5
# Between the moment at which a figure is taken and the one that Prometheus says it took it at, on a busy machine.
SLACK_SECONDS = 5.0
KILL = (*SMALL, "--dilation", "6", "kill-node", "--at", "step=20", "--repair", "15steps", "--steps", "70")
STEPS = 50
# Prometheus takes up to five seconds to notice a new target. These steps wait until it has read all ranks, until it has
# seen that two are left, and until it has read the new ones. Late data makes the others so long that it reads of many.
ALL_READ, LOSS_READ, NEW_READ = 5, 12, 46
RECORDED = f"""
name: recorded
twin: false
job: {{nodes: 2, gpus_per_node: 2, steps: {STEPS}, dilation: "off", strategy: ndb}}
faults:
  - {{kind: kill-node, on: node=1, at: {{step: 8}}, repair: 6steps}}
  - {{kind: slow-data, on: rank=0, at: {{step: 2}}, delay: 100ms}}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(Prometheus, the run that it has read to its end, the targets that it was given meanwhile)."""
    folder = tmp_path_factory.mktemp("recorded")
    out = folder / "out"
    out.mkdir()
    targets = out / "prometheus.json"
    given = []
    experiment = folder / "recorded.yaml"
    experiment.write_text(RECORDED)
    awaited = {
        ALL_READ: "count(training_rank_step) == 4",
        LOSS_READ: "training_ranks{state='alive'} == 2",
        NEW_READ: "count(last_over_time(training_rank_step[1h])) == 6 and on() (training_ranks{state='alive'} == 4)",
    }
    files = {step: folder / f"step-{step}" for step in awaited}
    patch = PATIENT + SLOW_UNTIL_BACK + waiting_at(files)
    with Prometheus(folder / "prometheus", targets, scrape_seconds=SCRAPE_SECONDS) as prometheus:
        with ChaosRun(folder / "run", ["run", str(experiment), "--json"], out=out, patch=patch) as run:
            while run.process.poll() is None:
                if targets.exists() and (text := targets.read_text()) and (not given or given[-1] != text):
                    given.append(text)
                step = next((step for step, file in files.items() if not file.exists()), None)
                if step is not None and run.newest_step() == step - 1 and prometheus.ask(awaited[step]):
                    files[step].touch()
                time.sleep(0.05)
            assert run.process.returncode == 0, run.stderr
            finished = read_run(run.folder, 0, run.stderr)
            assert_nothing_left(run, finished.events)
        assert not targets.exists()
        yield prometheus, finished, [json.loads(text) for text in given]


def test_the_steps_are_those_of_the_log(recorded):
    prometheus, finished, _ = recorded
    commits = {event.step: event.time_seconds for event in reversed(finished.of("step_committed"))}
    samples = [(at, int(step)) for at, step in prometheus.samples("training_step")]
    assert len({step for _, step in samples}) > 5, "it was not read often enough to say anything"
    assert samples[-1][1] == max(commits) == STEPS
    assert [step for _, step in samples] == sorted(step for _, step in samples)
    for at, step in samples:
        assert commits[step] < at + SLACK_SECONDS
        assert step + 1 not in commits or commits[step + 1] > at - SLACK_SECONDS


def test_the_fault_and_its_recovery_are_those_of_the_log(recorded):
    prometheus, finished, _ = recorded
    verified = prometheus.samples('chaos_faults_total{fault="kill-node",outcome="verified"}')
    injected = finished.one("injected").time_seconds
    assert (verified[0][1], verified[-1][1]) == (0, 1)
    first = next(at for at, value in verified if value == 1)
    assert first > injected - SCRAPE_SECONDS
    incident = finished.summary["incidents"][0]
    for phase in ("detect", "isolate", "regroup", "transfer", "first_step", "rejoin"):
        told = prometheus.samples(f'chaos_recovery_seconds{{fault="kill-node",phase="{phase}"}}')[-1][1]
        assert told == pytest.approx(incident["phases_seconds"][phase], abs=1e-3), phase
    told = prometheus.samples('chaos_recovery_seconds{fault="kill-node",phase="recovery"}')[-1][1]
    assert told == pytest.approx(incident["recovery_seconds"], abs=1e-3)


def test_the_ranks_that_are_alive_dip_while_the_node_is_away(recorded):
    prometheus, finished, _ = recorded
    alive = [int(value) for _, value in prometheus.samples('training_ranks{state="alive"}')]
    from_the_first = alive[alive.index(4) :]
    assert (min(from_the_first), from_the_first[-1]) == (2, 4)
    active = [int(value) for _, value in prometheus.samples('chaos_fault_active{fault="kill-node"}')]
    assert (max(active), active[-1]) == (1, 0)
    degraded = [value for _, value in prometheus.samples("training_degraded_layers")]
    assert (degraded[0], max(degraded), degraded[-1]) == (0, finished.of("layout")[1].fields["degraded_layers"], 0)


def test_where_the_time_went_is_what_the_summary_says(recorded):
    prometheus, finished, _ = recorded
    wall = finished.summary["wall_clock_seconds"]
    assert prometheus.samples("training_goodput_ratio")[-1][1] == pytest.approx(
        finished.summary["goodput_ratio"], abs=0.02
    )
    for cause, seconds in finished.summary["badput_seconds"].items():
        told = prometheus.samples(f'training_badput_seconds_total{{cause="{cause}"}}')
        assert told[-1][1] == pytest.approx(seconds, abs=0.02 * wall), cause
        assert [value for _, value in told] == sorted(value for _, value in told)


def test_the_verdict_and_the_gates_are_read_before_the_run_ends(recorded):
    prometheus, finished, _ = recorded
    assert prometheus.samples('chaos_verdict{verdict="pass"}')[-1][1] == 1
    gates = {result["metric"]["gate"] for result in prometheus.ask("last_over_time(chaos_gate_passed[1h]) == 1")}
    assert gates == {gate["expression"] for gate in finished.summary["gates"]}


def test_every_rank_was_read_and_those_of_the_new_node_too(recorded):
    prometheus, finished, given = recorded
    told = {event.fields["metrics"] for event in finished.of("rank_started")}
    assert len(told) == 6
    read = prometheus.ask('last_over_time(training_rank_step{role="rank"}[1h])')
    assert {result["metric"]["instance"] for result in read} == told
    assert {result["metric"]["rank"] for result in read} == {"0", "1", "2", "3"}
    # Each start of a rank has a series of its own, and none counts for the job.
    assert {r["metric"]["role"] for r in prometheus.ask("last_over_time(training_step[1h])")} == {"job"}
    numbers = [sum(len(group["targets"]) for group in groups if group["labels"]["role"] == "rank") for groups in given]
    assert numbers[0] == 0 and max(numbers) == 4
    dip = numbers[numbers.index(4) :]
    assert min(dip[: len(dip) - dip[::-1].index(4)]) == 2
    names = {key for result in read for key in result["metric"]}
    assert names == {"__name__", "instance", "job", "experiment", "role", "rank", "node"}


def test_when_the_run_is_over_there_is_nothing_to_read(recorded):
    prometheus, _, _ = recorded
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while prometheus.targets():
        assert time.monotonic() < deadline, prometheus.targets()
        time.sleep(0.1)


# ---- chaos serve ----


def read(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        return answer.read().decode()


def value_of(text, series):
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{series} ")), None)


@contextmanager
def serving(folder, *arguments):
    """(URL, process) of `chaos serve`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mecefo_chaos", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env=environment_of_run("serve", folder),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line + process.stdout.read()
        yield line[line.index("http://") :].split()[0], process
    finally:
        process.kill()
        process.communicate()


def test_a_finished_run_is_served_again(recorded, tmp_path):
    _, finished, _ = recorded
    out = finished.folder.parents[1]
    with serving(tmp_path, "--out", str(out)) as (url, process):
        text = read(url)
        assert value_of(text, "training_step") == STEPS
        assert value_of(text, 'chaos_verdict{verdict="pass"}') == 1
        assert value_of(text, "training_running") == 0
        (group,) = json.loads((out / "prometheus.json").read_text())
        assert group["targets"] == [url.split("/")[2]]
        port = url.split(":")[2].split("/")[0]
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "mecefo_chaos",
                "serve",
                "--out",
                str(out),
                "--port",
                port,
            ],
            capture_output=True,
            text=True,
            env=environment_of_run("serve", tmp_path),
            check=False,
        )
        assert (second.returncode, second.stderr) == (3, f"chaos: port {port} is in use: choose another with --port\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert not (out / "prometheus.json").exists()


def test_a_run_that_goes_on_is_served_as_far_as_it_has_come(recorded, tmp_path):
    _, finished, _ = recorded
    lines = (finished.folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    folder = tmp_path / "out" / "cut" / "20261121T000000Z"
    folder.mkdir(parents=True)
    log = folder / "events.jsonl"
    half = len(lines) // 2
    log.write_bytes(b"".join(lines[:half]) + lines[half][:20])
    with serving(tmp_path, str(folder), "--out", str(tmp_path / "out")) as (url, _):
        text = read(url)
        step = value_of(text, "training_step")
        assert 0 < step < STEPS
        assert value_of(text, "training_running") == 1
        assert "chaos_verdict{" not in text
        with log.open("ab") as file:
            file.write(lines[half][20:] + b"no event\n" + b"".join(lines[half + 1 :]))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        # What cannot be read may have said anything: such a log proves nothing.
        while 'chaos_verdict{verdict="inconclusive"} 1.0' not in (text := read(url)):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        assert value_of(text, "training_step") == STEPS


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ChaosRun(tmp_path, ["run", *KILL, "--metrics", str(port)]) as run:
            assert run.wait() == 3
            assert run.stderr == f"chaos: port {port} is in use: choose another with --metrics\n"
            assert not run.out.exists()


def test_a_run_that_was_killed_leaves_the_targets_to_the_next_one(tmp_path):
    out = tmp_path / "out"
    with ChaosRun(tmp_path / "killed", ["run", *KILL], out=out) as killed:
        killed.wait_for("step_committed", step=3)
        killed.process.kill()
        killed.wait()
        left = json.loads((out / "prometheus.json").read_text())
        assert {group["labels"]["role"] for group in left} == {"job", "rank"}
        assert_nothing_left(killed)
        # The watchdog has undone what there was, and the run is known no more.
        with ChaosRun(tmp_path / "dry", ["heal", "--dry-run"], out=out) as looked:
            assert looked.wait() == 0
            num_addresses = sum(len(group["targets"]) for group in left)
            assert f"would be removed from prometheus.json: {num_addresses} addresses of dead runs" in looked.stdout
    with serving(tmp_path, "--out", str(out)) as (url, _):
        (group,) = json.loads((out / "prometheus.json").read_text())
        assert group["targets"] == [url.split("/")[2]]
        assert value_of(read(url), "training_step") >= 3


@needs_prometheus
def test_the_configuration_in_the_documentation_finds_a_run_of_thirty_seconds(tmp_path):
    page = Document("docs/reference/metrics.md", (REPOSITORY / "docs/reference/metrics.md").read_text())
    (config,) = (yaml.safe_load(block.text) for block in blocks(page) if block.text.startswith("scrape_configs:"))
    # As for a first run: Prometheus is there already, the folder is not.
    out = tmp_path / "chaos-runs"
    with Prometheus(tmp_path / "prometheus", out / "prometheus.json", config=config) as prometheus:
        out.mkdir()
        with JobExporter("auto") as exporter:
            exporter.publish(out, "first")
            deadline = time.monotonic() + 30.0
            while not prometheus.ask('last_over_time(training_running{experiment="first",job="chaos"}[1h])'):
                assert time.monotonic() < deadline, "the run is not scraped"
                time.sleep(0.2)
