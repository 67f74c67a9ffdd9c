"""What the tool and the agent of a host say to each other, beside the channels that they open.

The first line of the agent on each stream is its `Greeting`, and that of the tool an `Attach`; frames follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.node.process_table import ReportedProcess
from mecefo_runtime.system.wire_messages import Messages

EXECUTOR, RANK, LOG, FILE = "executor", "rank", "log", "file"
"""What a channel is for: the executor of faults, a process of the job that reports, what a command prints, and a file
that the agent leaves to the run."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who speaks: the agent of this `host` (name and boot), by its `clock`.

    `version` is that of the tool there. `addresses` are those of its network interfaces, loopback left out. `is_new`:
    it has just been started, and knows nothing of the run. `num_received` frames have arrived so far. `folder` is where
    it keeps its ledger; `healed` are the faults of an earlier agent that it has undone. `problem`: why it is of no use.
    """

    version: str
    host: tuple[str, str]
    clock: str
    uid: int
    is_new: bool
    num_received: int
    addresses: tuple[str, ...] = ()
    folder: str = ""
    healed: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Attach:
    """The tool takes over: it has received `num_received` frames. `node` is the node that the host is, if it is one."""

    num_received: int
    node: int | None = None
    lease_seconds: float = 10.0


# ---- from the tool ----


@dataclass(frozen=True, slots=True)
class AskTime:
    """Asks for the time of the clock."""

    id: int


@dataclass(frozen=True, slots=True)
class Offset:
    """What is added to the times of this host's clock to have those of the run's."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Addresses:
    """The network addresses of the hosts of the job, by the name and the boot of each, with a blank between them."""

    of_hosts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StartCommand:
    """Start `words` in `folder`, with `environment` beside the own one; what it prints goes to a `LOG` channel."""

    id: int
    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the command that was started with that number."""

    id: int
    number: int


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """End all processes of the run on this host, those of the job."""

    id: int


@dataclass(frozen=True, slots=True)
class InsideAnswer:
    """What came of a question to the inside of a rank: `answer`, or why not, as a refusal."""

    id: int
    answer: Any = None
    refusal: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The run is over."""


# ---- from the agent ----


@dataclass(frozen=True, slots=True)
class Time:
    """CLOCK_MONOTONIC of this host."""

    id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process that had reported has ended; `exit` is None where nobody knows how."""

    pid: int
    start_ticks: int
    exit: int | None


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """The command with that number runs as this process; or it could not be started, and why."""

    id: int
    process: ReportedProcess | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command with that number has ended."""

    id: int
    exit: int


@dataclass(frozen=True, slots=True)
class ProcessesEnded:
    """Which processes of the run had to be ended."""

    id: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskInside:
    """A fault on this host has a question to the inside of a rank: `method` of `InsideHost` with `arguments`."""

    id: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A process of another user wanted to report."""

    uid: int
    pid: int


ToAgent = AskTime | Offset | Addresses | StartCommand | Signal | EndProcesses | InsideAnswer | Leave
FromAgent = Time | ProcessEnded | CommandStarted | CommandEnded | ProcessesEnded | AskInside | Refused
_REFUSAL = "no message between the tool and the agent of a host"
TO_AGENT = Messages(
    {
        "ask-time": AskTime,
        "offset": Offset,
        "addresses": Addresses,
        "start-command": StartCommand,
        "signal": Signal,
        "end-processes": EndProcesses,
        "inside-answer": InsideAnswer,
        "leave": Leave,
    },
    _REFUSAL,
)
FROM_AGENT = Messages(
    {
        "time": Time,
        "process-ended": ProcessEnded,
        "command-started": CommandStarted,
        "command-ended": CommandEnded,
        "processes-ended": ProcessesEnded,
        "ask-inside": AskInside,
        "refused": Refused,
    },
    _REFUSAL,
)
HELLO = Messages({"greeting": Greeting, "attach": Attach}, _REFUSAL)
