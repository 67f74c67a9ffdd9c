"""Hosts on this machine for benchmarks: those of the tests (`tests/cluster`), driven by their command line.

The tests are no package of the product, and nothing here imports them: a program of its own holds the hosts, and ends
them when this one ends.
"""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHAOS = str(Path(sys.prefix) / "bin/chaos")
USER = "alice"
# Much longer than 64 hosts take.
START_TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.05
_NUMBERS = itertools.count(1)


class NotFinished(Exception):
    """What was started on the hosts was not over in time, or did not do what it should."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was started on a host is over: its exit code, what it printed, and a folder that is its own."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts `names`, with Slurm or an sshd on each (`kind`); `home` is the user's, which all share."""

    kind: str
    folder: Path
    names: Sequence[str]
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, node: int, *words: str) -> list[str]:
        """What to start here so that `words` run on host `node` (0: the head) as the user."""
        run = [sys.executable, "-m", "tests.cluster", "run", "--user", USER, str(self.folder), str(node), "--"]
        return [*run, "env", *(f"{name}={value}" for name, value in self.environment.items()), *words]

    def new_folder(self) -> Path:
        """A folder of the user that all hosts share."""
        folder = self.home / f"folder-{next(_NUMBERS)}"
        subprocess.run(self.command(0, "mkdir", str(folder)), cwd=ROOT, check=True)
        return folder

    def run(self, words: Sequence[str], timeout_seconds: float) -> Done:
        """Run `words` to their end: in a batch job of all hosts with Slurm, else on the first host.

        Raises:
            NotFinished: they were not over in time; they have been ended.
        """
        folder = self.new_folder()
        script = folder / "script"
        # Whoever sees `exit_code` sees all of it.
        inner = f"cd {folder}; {shlex.join(words)} >stdout 2>stderr; echo $? >new; mv new exit_code"
        script.write_text(f"#!/bin/sh\n{inner}\n")
        script.chmod(0o755)
        if self.kind == "slurm":
            num = str(len(self.names))
            sbatch = ("sbatch", "--parsable", "--no-requeue", "-N", num, "-n", num, f"--output={folder}/output")
            job = self._output(0, *sbatch, str(script)).strip()
            if not self._wait(folder / "exit_code", timeout_seconds):
                self._output(0, "scancel", job)
                raise NotFinished(_text(folder / "stderr")[-2000:])
            # The next job begins when this one has left the hosts.
            deadline = time.monotonic() + timeout_seconds
            while self._output(0, "squeue", "-h", "-j", job, "-o", "%T").strip() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        else:
            try:
                subprocess.run(self.command(1, str(script)), cwd=ROOT, timeout=timeout_seconds, check=False)
            except subprocess.TimeoutExpired as error:
                raise NotFinished(_text(folder / "stderr")[-2000:]) from error
        exit_code = int(_text(folder / "exit_code") or -1)
        return Done(exit_code, _text(folder / "stdout"), _text(folder / "stderr"), folder)

    def leftovers(self) -> str:
        """What runs left on the hosts, a line each."""
        words = [sys.executable, "-m", "tests.cluster", "leftovers", str(self.folder)]
        return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    def _output(self, node: int, *words: str) -> str:
        return subprocess.run(
            self.command(node, *words), cwd=ROOT, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        ).stdout

    def _wait(self, path: Path, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not path.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


@contextmanager
def hosts(kind: str, num: int, environment: Mapping[str, str] | None = None) -> Iterator[Hosts]:
    """`num` hosts of this kind (`slurm` or `ssh`), whose user's commands have `environment`; gone afterwards.

    Raises:
        NotFinished: they cannot be started here.
    """
    words = [sys.executable, "-m", "tests.cluster", "hold", kind, "--num", str(num)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            line = holder.stdout.readline()
            if not line:
                raise NotFinished(f"{num} hosts with {kind} do not start here")
            told: Mapping[str, Any] = json.loads(line)
            folder, home = Path(told["folder"]), Path(told["home"])
            yield Hosts(kind, folder, tuple(told["names"]), home, dict(environment or {}))
        finally:
            # They end with its standard input.
            holder.stdin.close()
            holder.wait()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
