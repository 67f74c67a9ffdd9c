"""Runs `chaos run` over several hosts as their user does: in an allocation of Slurm, or from a host by ssh."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mecefo_runtime.system.events import MAIN_JOB, Event
from tests.cluster.hosts import Hosts
from tests.cluster.slurm import Slurm
from tests.integration.runs import Finished, event_logs, read_run

JOBS = Path(__file__).parent / "jobs"
# Much longer than a run of four hosts takes on a busy machine.
RUN_TIMEOUT_SECONDS = 300.0
# The kernel and Slurm need a moment to end what died with a step.
GONE_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.1
# Of a job that was ended before its command: cancelled, or lost with its host.
NO_EXIT_CODE = -1
# Of a job under torchrun. Without the last one PyTorch may give ranks that are started again the addresses of those
# before, and the job hangs for minutes.
VARIABLES = {"OMP_NUM_THREADS": "1", "MASTER_PORT": "29511", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_NUMBERS = itertools.count(1)


def torchrun(
    hosts: Hosts,
    script: str,
    *arguments: str,
    num_nodes: int | str = 0,
    num_restarts: int = 2,
    port: int = 29500,
    store: int = 1,
) -> list[str]:
    """The command of one rank on each of `num_nodes` hosts, as each starts it; the store is on the host `store`.

    `num_nodes`: 0 are all; `2:4` are at least 2, and 4 where all are there within 2 s.
    """
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.name(store)}:{port}"]
    if isinstance(num_nodes, str):
        rendezvous += ["--rdzv-conf", "last_call_timeout=2"]
    counts = ("--nnodes", str(num_nodes or hosts.num), "--nproc-per-node", "1", "--max-restarts", str(num_restarts))
    return [sys.executable, "-m", "torch.distributed.run", *counts, *rendezvous, str(JOBS / script), *arguments]


def ranks(hosts: Slurm, steps: int) -> list[str]:
    """A command of one rank on each host that `srun` starts without a launcher: it is at its first step soonest."""
    num = str(hosts.num)
    return ["srun", "-N", num, "-n", num, sys.executable, str(JOBS / "ddp.py"), str(steps), str(new_folder(hosts))]


def new_folder(hosts: Hosts, user: str = "alice") -> Path:
    """A folder of `user` that all hosts share, for checkpoints."""
    folder = hosts.home(user) / f"training-{next(_NUMBERS)}"
    hosts.run(0, "mkdir", str(folder), user=user)
    return folder


def assert_nothing_left(hosts: Hosts, timeout_seconds: float = GONE_TIMEOUT_SECONDS) -> None:
    """That after at most `timeout_seconds` no host has anything of a run; one without power has nothing."""
    deadline = time.monotonic() + timeout_seconds
    while left := hosts.all_leftovers():
        assert time.monotonic() < deadline, "left on the hosts:\n" + "\n".join(left)
        time.sleep(POLL_SECONDS)


def await_gone(hosts: Hosts, node: int, *texts: str) -> None:
    """Wait until `node` has no process with one of `texts` in its command line."""
    deadline = time.monotonic() + GONE_TIMEOUT_SECONDS
    while left := [pid for text in texts for pid in hosts.processes(node, text)]:
        assert time.monotonic() < deadline, (node, texts, left)
        time.sleep(POLL_SECONDS)


def run_chaos(
    hosts: Hosts, *arguments: str, command: Sequence[str] = (), timeout_seconds: float = RUN_TIMEOUT_SECONDS
) -> Finished:
    """`chaos run ARGUMENTS --json [-- COMMAND]` to its end, after which there is nothing left on any host."""
    with ClusterRun(hosts, *arguments, command=command) as run:
        finished = run.wait(timeout_seconds)
        assert "Traceback" not in finished.stderr, finished.stderr
        assert_nothing_left(hosts)
    return finished


class Allocation:
    """A job of Slurm's that has all hosts with all of their memory and GPUs; runs are started in it."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        words = ("sh", "-c", "env -0 >new; mv new env; exec sleep infinity")
        self.job, folder = slurm.submit(*words, options=everything(slurm))
        deadline = time.monotonic() + GONE_TIMEOUT_SECONDS
        while not (folder / "env").exists():
            assert time.monotonic() < deadline, "the job does not start"
            time.sleep(POLL_SECONDS)
        pairs = (one.partition("=") for one in (folder / "env").read_text().split("\0") if one)
        self.environment = {name: value for name, _, value in pairs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        deadline = time.monotonic() + GONE_TIMEOUT_SECONDS
        while self.slurm.is_queued(self.job):
            assert time.monotonic() < deadline, "the job does not end"
            time.sleep(POLL_SECONDS)

    def cancel(self) -> None:
        """As its user does it."""
        self.slurm.run(0, "scancel", self.job, user="alice", check=False)


def everything(hosts: Hosts) -> tuple[str, ...]:
    """Options of sbatch: a job has all memory anyway, where that is a resource; and all GPUs."""
    return (f"--gres=gpu:{hosts.gpus}",) if isinstance(hosts, Slurm) and hosts.gpus else ()


class ClusterRun:
    """One `chaos run` of `user`, and all that it starts on the hosts; a context that ends them.

    With Slurm in a batch job of all hosts (`options` are further ones of sbatch), so on the first of them, or in an
    allocation that there is; else on `node`.
    """

    def __init__(
        self,
        hosts: Hosts,
        *arguments: str,
        command: Sequence[str] = (),
        node: int = 1,
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
        allocation: Allocation | None = None,
    ) -> None:
        self.hosts = hosts
        self._node = node
        self.out = hosts.home(user) / f"run-{next(_NUMBERS)}"
        hosts.run(0, "mkdir", str(self.out), user=user)
        chaos = [f"{sys.prefix}/bin/chaos", "run", *arguments, "--json", "--out", str(self.out)]
        words = shlex.join([*chaos, *(["--", *command] if command else [])])
        # `new`, then `exit_code`: whoever sees the file sees all of it.
        script = f"cd {self.out}; {words} >stdout 2>stderr; echo $? >new; mv new exit_code"
        variables = {**VARIABLES, **(env or {})}
        self.job = ""
        self._process: subprocess.Popen[str] | None = None
        if isinstance(hosts, Slurm) and allocation is None:
            options = (*everything(hosts), *options)
            self.job, _ = hosts.submit("sh", "-c", script, user=user, env=variables, options=options)
        else:
            variables = {**(allocation.environment if allocation else {}), **variables}
            self._process = hosts.popen(node, "sh", "-c", script, user=user, env=variables)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self.job:
            self.hosts.run(0, "scancel", self.job, check=False)
        if error is not None:
            self.hosts.clear()

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        """What it has said on standard error."""
        return self._text("stderr")

    @property
    def folder(self) -> Path:
        """The folder of its run, the only one in its OUT."""
        (log,) = event_logs(self.out)
        return log.parent

    def is_over(self) -> bool:
        """Whether it has ended, and its job with it."""
        if self._process is not None:
            return self._process.poll() is not None
        assert isinstance(self.hosts, Slurm)
        return not self.hosts.is_queued(self.job)

    def wait(self, timeout_seconds: float = RUN_TIMEOUT_SECONDS) -> Finished:
        """Wait for its end: exit code, summary, events and standard error."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_over():
            assert time.monotonic() < deadline, f"not over after {timeout_seconds} s:\n{self.stderr}"
            time.sleep(POLL_SECONDS)
        exit_code = int(self._text("exit_code") or NO_EXIT_CODE)
        assert event_logs(self.out), f"no run was made; exit code {exit_code}:\n{self.stderr}"
        return read_run(self.folder, exit_code, self.stderr)

    def wait_for(self, kind: str, **wanted: object) -> Event:
        """Wait until the log has an event of `kind`, with `job`, `step` or fields as wanted; returns it."""
        deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
        while True:
            # Asked first: what it wrote before its end is read after it.
            is_over = self.is_over()
            for event in self.events_so_far():
                known = {"job": event.job, "step": event.step, **event.fields}
                if event.kind == kind and all(known.get(key) == value for key, value in wanted.items()):
                    return event
            assert not is_over, f"ended before {kind}:\n{self.stderr}"
            assert time.monotonic() < deadline, f"no {kind} {wanted} within {RUN_TIMEOUT_SECONDS} s:\n{self.stderr}"
            time.sleep(POLL_SECONDS)

    def sleep(self, seconds: float) -> None:
        """Let it run for so long: a time that is part of what happens, such as that of a network that is cut."""
        time.sleep(seconds)

    def wait_for_file(self, path: Path) -> None:
        """Wait until `path` is there, as a fault writes it."""
        while not path.exists():
            assert not self.is_over(), f"ended before {path} was there:\n{self.stderr}"
            time.sleep(POLL_SECONDS)

    def kill_chaos(self) -> None:
        """SIGKILL to `chaos`, as the kernel does it where memory is short."""
        # The shell that has started it is the other one.
        self.hosts.run(self._node, "kill", "-KILL", str(max(self.hosts.processes(self._node, f"--out {self.out}"))))

    def wait_for_step(self, step: int) -> None:
        """Wait until the job has committed `step`, or a later one."""
        self._wait_until(
            lambda event: event.kind == "step_committed" and (event.step or 0) >= step, f"step {step} was committed"
        )

    def wait_for_rank(self, rank: int, step: int) -> None:
        """Wait until something of `rank` in `step`, or a later one, has arrived."""
        self._wait_until(
            lambda event: event.rank == rank and (event.step or 0) >= step, f"rank {rank} had {step} steps"
        )

    def _wait_until(self, is_met: Callable[[Event], bool], what: str) -> None:
        while not any(map(is_met, self.events_so_far())):
            assert not self.is_over(), f"ended before {what}:\n{self.stderr}"
            time.sleep(POLL_SECONDS)

    def crash_at(self, node: int, step: int) -> None:
        """Cut the power of `node` when the job has committed `step`."""
        self.wait_for_step(step)
        self.hosts.crash(node)

    def events_so_far(self) -> Iterator[Event]:
        """The events of the main job in its log."""
        for log in event_logs(self.out):
            for line in log.read_bytes().splitlines(keepends=True):
                # The last one may be half written.
                if line.endswith(b"\n") and (event := Event.from_json(line)).job == MAIN_JOB:
                    yield event

    def _text(self, name: str) -> str:
        path = self.out / name
        return path.read_text() if path.exists() else ""
