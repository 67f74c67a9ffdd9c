"""Runs `chaos` as a user does, and looks at what it did: its exit code, its log, and the processes of its run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.json_values import from_json
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.record import keys_of
from mecefo_runtime.system.records import RECORDS
from tests.harness.exporter.scrape import assert_agrees

REPOSITORY = Path(__file__).resolve().parents[2]
# Much longer than any of these runs takes on a busy machine: what is not over by then hangs.
RUN_TIMEOUT_SECONDS = 600.0
WAIT_TIMEOUT_SECONDS = 300.0
# The kernel needs a moment to end what died with its parent, and whoever undoes in the place of another has to start.
GONE_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.01

# Two nodes of two ranks, two replicas of two stages: the smallest job in which a node can die and every layer live on.
# With one microbatch instead of three a step takes half of the CPU time.
SMALL = (
    *("--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--no-twin", "--strategy", "ndb"),
    *("--microbatches-per-replica", "1"),
)

# Patches are executed by every process of the run as it starts; what follows this is for those that the ranks are
# forked from.
IN_RANKS = "import sys\nif 'harness.backends.forkserver' in sys.orig_argv:\n"

# A patch of the command, which tells its ranks: none of them is taken for lost but those that were killed, however long
# the machine is busy. Connections that close are noticed at once all the same.
PATIENT = """
import sys

if sys.orig_argv[1] == "-c":
    from mecefo_runtime.job.config import JobConfig

    set_up = JobConfig.__init__

    def set_up_patiently(self, *args, **fields):
        set_up(self, *args, **{"heartbeat_timeout_seconds": 60.0, **fields})

    JobConfig.__init__ = set_up_patiently
"""

# A patch: while ranks are missing, steps are so slow that those that are started again are back before the end.
SLOW_UNTIL_BACK = f"""
{IN_RANKS}
    import time

    from mecefo_runtime.step.step import Stepper

    run_at_once, most_members = Stepper.run, 0

    def run_slowly_until_back(self, epoch, step):
        global most_members
        most_members = max(most_members, len(epoch.members))
        if len(epoch.members) < most_members:
            time.sleep(0.2)
        return run_at_once(self, epoch, step)

    Stepper.run = run_slowly_until_back
"""

# As the installed `chaos`: the current folder is not on its path.
INSTALLED = "import sys; sys.path.remove(''); from mecefo_chaos.cli.main import main; main()"

_MARK = "TEST_RUN_MARK"


def saved_before(step: int, saved_step: int) -> str:
    """A patch: no rank begins `step` before the checkpoint of `saved_step` is whole, however busy the machine is."""
    return f"""{IN_RANKS}
    import time

    from mecefo_runtime.checkpoint.durable import newest_durable
    from mecefo_runtime.step.step import Stepper

    run_unsaved = Stepper.run

    def run_when_saved(self, epoch, step):
        deadline = time.monotonic() + {GONE_TIMEOUT_SECONDS}
        # The baseline beside it saves nothing.
        while self._job.checkpoint is not None and step == {step} and time.monotonic() < deadline:
            newest = newest_durable(self._job)
            if newest is not None and newest.step >= {saved_step}:
                break
            time.sleep(0.01)
        return run_unsaved(self, epoch, step)

    Stepper.run = run_when_saved
"""


def paced(step_seconds: float, until_step: int = 10**9) -> str:
    """A patch: no step up to `until_step` takes less, however fast the machine is.

    For what lasts seconds, such as a fault, a heartbeat's time-out, or the start of a node: the job must not be over
    before.
    """
    return f"""{IN_RANKS}
    import time

    from mecefo_runtime.step.step import Stepper

    run_unpaced = Stepper.run

    def run_in_time(self, epoch, step):
        ends_seconds = time.monotonic() + ({step_seconds} if step <= {until_step} else 0.0)
        outcome = run_unpaced(self, epoch, step)
        time.sleep(max(0.0, ends_seconds - time.monotonic()))
        return outcome

    Stepper.run = run_in_time
"""


def waiting_at(files: Mapping[int, Path]) -> str:
    """A patch: no rank begins a step of `files` before its file is there."""
    names = {step: str(file) for step, file in files.items()}
    return f"""{IN_RANKS}
    import os
    import time

    from mecefo_runtime.step.step import Stepper

    run_unasked = Stepper.run
    files = {names}

    def run_when_told(self, epoch, step):
        while step in files and not os.path.exists(files[step]):
            time.sleep({POLL_SECONDS})
        return run_unasked(self, epoch, step)

    Stepper.run = run_when_told
"""


class ChaosRun:
    """One `chaos` process and all that it starts, known by a mark in their environment; a context that ends them."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        out: Path | None = None,
        patch: str = "",
        limits: Mapping[int, int] | None = None,
        stdout: Any = None,
        stderr: Any = None,
        command: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out = folder / "out" if out is None else out
        self.mark = uuid.uuid4().hex
        self._stdout_path, self._stderr_path = folder / "stdout", folder / "stderr"
        with self._stdout_path.open("wb") as to_file, self._stderr_path.open("wb") as stderr_file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", INSTALLED, *arguments, "--out", str(self.out)]
                + (["--", *command] if command else []),
                stdin=subprocess.DEVNULL,
                stdout=to_file if stdout is None else stdout,
                stderr=stderr_file if stderr is None else stderr,
                cwd=folder,
                env=environment_of_run(self.mark, folder, patch),
                start_new_session=True,
                preexec_fn=_limiter(limits) if limits else None,
            )

    def __enter__(self) -> ChaosRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in processes_of_run(self.mark):
            process.signal(signal.SIGKILL)
        self.process.wait()

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self._stdout_path.read_text()

    @property
    def stderr(self) -> str:
        """What it has said on standard error."""
        return self._stderr_path.read_text()

    @property
    def folder(self) -> Path:
        """The folder of its run, the only one in its OUT."""
        (log,) = event_logs(self.out)
        return log.parent

    def wait(self, timeout_seconds: float = RUN_TIMEOUT_SECONDS) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(timeout_seconds)

    def wait_for(self, kind: str, **wanted: object) -> Event:
        """Wait until the log has an event of `kind`, with `job`, `step` or fields as wanted; returns it."""
        deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while True:
            # Asked first: what it wrote before its end is read after it.
            exit_code = self.process.poll()
            for event in self._events_so_far():
                known = {"job": event.job, "step": event.step, **event.fields}
                if event.kind == kind and all(known.get(key) == value for key, value in wanted.items()):
                    return event
            assert exit_code is None, f"ended with {exit_code} before {kind}:\n{self.stderr}"
            assert time.monotonic() < deadline, f"no {kind} {wanted} within {WAIT_TIMEOUT_SECONDS} s:\n{self.stderr}"
            time.sleep(POLL_SECONDS)

    def newest_step(self) -> int:
        """The newest step of the main job that its log tells of so far."""
        told = (event for event in self._events_so_far() if event.kind == "step_committed" and event.job == MAIN_JOB)
        return max((event.step or 0 for event in told), default=0)

    def _events_so_far(self) -> Iterator[Event]:
        for log in event_logs(self.out):
            for line in log.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield Event.from_json(line)


@dataclass(frozen=True)
class Finished:
    """A run that has ended, as its files tell it."""

    exit_code: int
    stderr: str
    folder: Path
    events: tuple[Event, ...]
    summary: Mapping[str, Any]

    def of(self, kind: str, job: str = MAIN_JOB) -> list[Event]:
        """The events of `kind` in one of the jobs, as they happened."""
        found = [event for event in self.events if event.kind == kind and event.job == job]
        return sorted(found, key=lambda event: event.monotonic_seconds)

    def one(self, kind: str, incident: int = 0) -> Event:
        """The only event of `kind` that belongs to `incident`."""
        (event,) = (event for event in self.of(kind) if event.fields.get("incident") == incident)
        return event


def run_chaos(folder: Path, *arguments: str, patch: str = "", command: Sequence[str] = ()) -> Finished:
    """`chaos run ARGUMENTS --json [-- COMMAND]` to its end; standard output must be its summary, and nothing left."""
    with ChaosRun(folder, ["run", *arguments, "--json"], patch=patch, command=command) as run:
        exit_code = run.wait()
        assert "Traceback" not in run.stderr, run.stderr
        finished = read_run(run.folder, exit_code, run.stderr)
        assert json.loads(run.stdout) == finished.summary
        assert_nothing_left(run, finished.events)
    return finished


def read_run(folder: Path, exit_code: int, stderr: str = "") -> Finished:
    """What the files of an ended run tell: of every run that Prometheus would have read last what its summary says."""
    events = read_log(folder / "events.jsonl")
    summary = json.loads((folder / "summary.json").read_text())
    unknown = {(one.kind, key) for one in events for key in one.fields.keys() - set(keys_of(RECORDS[one.kind]))}
    assert not unknown, "the records of events lack fields that a run tells"
    assert_agrees(events, summary)
    return Finished(exit_code, stderr, folder, events, summary)


def event_logs(out: Path) -> list[Path]:
    """The event logs of the runs in OUT; the link `latest`, which a run may be replacing just now, is not followed."""
    return sorted(out.glob("[!.]*/[!.]*/events.jsonl"))


def read_log(path: Path) -> tuple[Event, ...]:
    """All events of a log, every line of which must be one."""
    return tuple(Event.from_json(line) for line in path.read_bytes().splitlines())


def environment_of_run(mark: str, folder: Path, patch: str = "") -> dict[str, str]:
    """Our environment with `mark` in it; `patch` is Python that every process of the run executes as it starts."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    if patch:
        site = folder / "site"
        site.mkdir(parents=True)
        # As `sitecustomize`: the product knows nothing of it.
        (site / "sitecustomize.py").write_text(patch)
        paths.insert(0, str(site))
    return {
        **os.environ,
        _MARK: mark,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NO_COLOR": "1",
        "CHAOS_STATE": str(folder / "state"),
    }


def processes_of_run(mark: str) -> list[ProcessId]:
    """Every running process on this machine that was started with `mark` in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(ProcessId.of(int(entry.name)))
    return [process for process in found if process.is_running()]


def assert_nothing_left(
    run: ChaosRun, events: Sequence[Event] = (), timeout_seconds: float = GONE_TIMEOUT_SECONDS
) -> None:
    """That no process of the run is there after at most `timeout_seconds`: neither by its mark nor by its log."""
    started = [
        ProcessId(event.fields["started_pid"], event.fields["start_ticks"])
        for event in events
        if event.kind == "process_started"
    ]
    deadline = time.monotonic() + timeout_seconds
    while left := [*processes_of_run(run.mark), *(process for process in started if process.is_running())]:
        assert time.monotonic() < deadline, f"still running after {timeout_seconds} s: {left}"
        time.sleep(POLL_SECONDS)


def assert_sound(run: Finished, steps: int) -> None:
    """What holds of every job that completed: each step committed, of its own samples, and all time accounted."""
    summary = run.summary
    assert summary["steps_committed"] == steps
    assert (summary["steps_lost"], summary["samples_lost"]) == (0, 0)
    assert summary["unrecovered_incidents"] == 0
    per_step = run.of("job_started")[0].fields["samples_per_step"]
    committed = {event.step: event.fields for event in reversed(run.of("step_committed"))}
    assert sorted(committed) == list(range(1, steps + 1))
    for step, fields in committed.items():
        assert fields["samples"] == per_step, step
        assert fields["samples_checksum"] == checksum(samples_of_step(step, per_step)), step
    assert_holders_agree(run)
    assert summary["diverged_units"] == 0
    assert_time_adds_up(summary)
    for incident in summary["incidents"]:
        assert_time_adds_up(incident)
    (residue,) = run.of("residue")
    assert (residue.fields["processes"], residue.fields["undo_pending"]) == ([], [])
    assert run.of("run_ended")[0].fields["reason"] == "completed"
    for log in run.folder.glob("logs/coordinator*.log"):
        assert "Traceback" not in log.read_text()


def assert_holders_agree(run: Finished, job: str = MAIN_JOB) -> None:
    """That at the end every rank of the layout told its checksums, and all holders of a unit had the same."""
    layout = from_json(Layout, run.of("layout", job)[-1].fields["layout"])
    told = {event.rank: event.fields["checksums"] for event in run.of("rank_finished", job)}
    assert told.keys() >= layout.ranks()
    for unit, ranks in layout.holders().items():
        assert len({told[rank][unit] for rank in ranks}) == 1, f"{unit} differs among {ranks}"


def assert_time_adds_up(figures: Mapping[str, Any]) -> None:
    """That productive time and badput together are the wall clock, and none of them is negative."""
    parts = [figures["productive_seconds"], *figures["badput_seconds"].values()]
    assert all(part >= 0 for part in parts), parts
    assert abs(sum(parts) - figures["wall_clock_seconds"]) < 1e-6, figures


def assert_survived(
    run: Finished, steps: int, *, at: int | None, phase: str = "forward", incident: int = 0, repaired: bool = True
) -> None:
    """That the run passed, and that its incident fired at exactly (step, phase), was verified, and was recovered from.

    `at` None: at a time. `repaired`: the target is back at the end.
    """
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, steps)
    said = run.summary["incidents"][incident]
    assert said["verified"] and said["evidence"] and said["recovered"] and said["phase_order_valid"]
    injected, verified = (run.one(kind, incident) for kind in ("injected", "verified"))
    assert injected.monotonic_seconds <= verified.monotonic_seconds
    assert injected.step == said["step"]
    if at is not None:
        held = [event for event in run.of("held") if event.fields["incident"] == incident]
        assert {(event.step, event.fields["phase"]) for event in held} == {(at, phase)}
        assert verified.monotonic_seconds <= run.one("released", incident).monotonic_seconds
        assert held[0].monotonic_seconds <= injected.monotonic_seconds
        assert (injected.step, injected.fields["phase"]) == (at, phase)
        # The held rank has shared its part of the step before, for which the leader had to be over the one before that;
        # and without the held rank this one cannot have been committed.
        assert _committed(run, at - 2) <= injected.monotonic_seconds
        if phase not in ("optimizer", "commit", "checkpoint"):
            assert injected.monotonic_seconds <= _committed(run, at)
    _assert_killed(run, incident)
    if injected.fields["ranks"]:
        _assert_regrouped(run, incident, repaired)


def _committed(run: Finished, step: int) -> float:
    return min(e.fields["committed_monotonic"] for e in run.of("step_committed") if e.step == step)


def _assert_killed(run: Finished, incident: int) -> None:
    """That the processes of the injection were this run's own, and exactly they are seen to be gone."""
    started = {(event.fields["started_pid"], event.fields["start_ticks"]) for event in run.of("process_started")}
    targets = {(p["pid"], p["start_ticks"]) for p in run.one("injected", incident).fields["processes"]}
    seen = run.one("verified", incident).fields["evidence"]["processes"]
    assert targets and targets <= started
    assert {(process["pid"], process["start_ticks"]) for process in seen} == targets
    assert {process["state"] for process in seen} <= {"Z", "X", "gone"}


def _assert_regrouped(run: Finished, incident: int, repaired: bool) -> None:
    """That the job noticed, went on without its lost ranks in the same processes, and took them back if repaired."""
    injected = run.one("injected", incident)
    lost = set(injected.fields["ranks"])
    later = [event for event in run.events if event.monotonic_seconds >= injected.monotonic_seconds]
    detected = {rank for event in later if event.kind == "detected" for rank in event.fields["lost"]}
    assert lost <= detected
    times = [
        min(event.monotonic_seconds for event in later if event.kind == kind)
        for kind in ("injected", "detected", "isolated", "regrouped")
    ]
    assert times == sorted(times)
    # No survivor was started again: whoever was, was lost to a fault.
    affected = {rank for event in run.of("injected") for rank in event.fields["ranks"]}
    again = {e.fields["started_rank"] for e in run.of("process_started") if e.fields.get("rank_attempt", 1) > 1}
    assert again <= affected
    back = {rank for event in later if event.kind == "rejoined" for rank in event.fields["ranks"]}
    assert lost <= back if repaired else not lost & back
    if repaired:
        first, last = run.of("layout")[0], run.of("layout")[-1]
        assert last.fields["layout"] == first.fields["layout"], "the layout did not return to the configured one"
        assert last.fields["degraded_layers"] == 0


def _limiter(limits: Mapping[int, int]) -> Any:
    import resource

    def limit() -> None:
        for which, value in limits.items():
            resource.setrlimit(which, (value, value))

    return limit
