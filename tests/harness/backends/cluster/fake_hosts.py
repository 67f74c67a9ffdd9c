"""An engine whose hosts are pretended on this machine: without Slurm, ssh, or root."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mecefo_runtime.system.process import ProcessId, read_environment

FAKE_HOST = Path(__file__).with_name("fake_host.py")
# In the environment of what starts an agent: which host it is about.
VARIABLE = "TEST_STREAM_OF"
# As an engine does: what is started here passes on what the agent says, and its end is not that of the agent.
RELAYED = '"$@" <&0 > >(cat) & exec <&- >&-; wait'


class FakeHosts:
    """See `harness.backends.cluster.engine.Engine`."""

    name = "fake"
    reference = "fake:1"
    ends_with_stream = False

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.hosts = hosts
        self.run = uuid.uuid4().hex
        self.versions: dict[str, str] = {}
        self.offsets_seconds: dict[str, float] = {}
        # What is started instead.
        self.broken: dict[str, list[str]] = {}
        self._folder = folder
        for host in hosts:
            self.place(host).mkdir(mode=0o700)
            (self.place(host) / "boot_id").write_text(f"boot of {host}\n")

    def place(self, host: str) -> Path:
        """What is on its disks."""
        return self._folder / host

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """As asked for, on the pretended host."""
        if host in self.broken:
            return self.broken[host]
        asked = list(words)
        version, offset = self.versions.get(host, ""), str(self.offsets_seconds.get(host, 0.0))
        program = [sys.executable, str(FAKE_HOST), host, str(self.place(host)), version, offset]
        agent = [*program, *asked[asked.index("harness.node") :]]
        return ["env", f"{VARIABLE}={self.run}-{host}", "bash", "-c", RELAYED, "bash", *agent]

    def hang(self, host: str) -> None:
        """What is started there from now on says nothing."""
        self.broken[host] = ["env", f"{VARIABLE}={self.run}-{host}", "cat"]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """As it is."""
        return dict(environment)

    def end(self, host: str) -> list[str]:
        """It ends with its stream."""
        return []

    def processes(self, host: str, program: str = "") -> list[ProcessId]:
        """What was started for the agent of a host, and runs; `program` is the name of one."""
        mark = f"{VARIABLE}={self.run}-{host}".encode()
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError):
                    process = ProcessId.of(int(entry.name))
                    words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                    is_meant = not program or Path(words[0].decode()).name.startswith(program)
                    is_ours = mark in read_environment(process.pid).split(b"\0") and process.is_running()
                    if is_ours and is_meant and b"chaos.undo.watchdog" not in words:
                        found.append(process)
        return found

    def kill(self, host: str) -> None:
        """The host loses its agent."""
        for process in self.processes(host):
            with suppress(ProcessLookupError):
                process.signal(signal.SIGKILL)

    def cut(self, host: str) -> None:
        """The stream breaks; the agent does not."""
        for process in self.processes(host, "cat"):
            process.signal(signal.SIGKILL)
