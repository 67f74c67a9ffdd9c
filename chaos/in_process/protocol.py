"""What agents and the injector say to each other: one frozen dataclass a message, the session, and who listens.

On the wire a message is an object with its word as `type` and the fields as keys; the first one to an agent that said
hello, where it is to be held, has no type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mecefo_runtime.system.json_values import LEFT_OUT, to_json
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import Message
from mecefo_runtime.system.wire_messages import Messages

# Where the agents of a run report: `unix:PATH`.
AGENT_VARIABLE = "CHAOS_AGENT"
Hold = tuple[int | None, str]
"""At which phase of which step; of a phase outside of steps, from which step on."""
ASKS_FOR_START = "asks_for_start"
"""A key of an agent's hello: it understands `Holds.start`, which one of an earlier version would refuse."""


@dataclass(frozen=True, slots=True)
class SnapshotsOf:
    """The place of an agent in the snapshot process of `node`."""

    node: int


Place = int | SnapshotsOf
"""Where an agent is: in a rank, or in a node's snapshot process."""


# ---- from the injector ----


@dataclass(frozen=True, slots=True)
class Start:
    """The state of the run at a start of an external job's rank.

    `is_later`: an earlier attempt has committed steps. `states` has digests of parameters that ranks have had, and
    after which steps: a later start may continue there.
    """

    is_later: bool = False
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holds:
    """Where the rank is to be held, said when the agent has said hello; `start` is for who asked (`ASKS_FOR_START`)."""

    holds: tuple[Hold, ...] = ()
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Be held at your next announcement, whatever that is."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin `effect` (`module:class`), which is called `handle` from now on. Only to who is held."""

    handle: int
    effect: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lift:
    """End an effect."""

    handle: int


@dataclass(frozen=True, slots=True)
class Release:
    """Go on; from now on be held at `holds`."""

    holds: tuple[Hold, ...] = ()


# ---- from an agent ----


@dataclass(frozen=True, slots=True)
class At:
    """The rank is held here; within a save with the `path` and the size of the file."""

    step: int
    phase: str
    path: str | None = field(default=None, metadata=LEFT_OUT)
    num_bytes: int | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Came:
    """The rank came to `phase` of `step`, and is not held there.

    `is_steady`: the phase comes in every step, and from this one on it is reported again only after a step without it;
    then `ended` is the last step before that gap.
    """

    step: int
    phase: str
    is_steady: bool = False
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Began:
    """The effect has begun, and says what it did."""

    handle: int
    told: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The effect was not begun."""

    handle: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an effect reports."""

    handle: int
    told: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lifted:
    """The effect has ended; `{"gone": True}` where there was none."""

    handle: int
    told: dict[str, Any]


FromInjector = Call | Begin | Lift | Release
FromAgent = At | Came | Began | Refused | Report | Lifted
_REFUSAL = "no message of an agent or the injector"
_FROM_INJECTOR = Messages({"call": Call, "begin": Begin, "lift": Lift, "release": Release}, _REFUSAL)
_FROM_AGENT = Messages(
    {"at": At, "came": Came, "began": Began, "refused": Refused, "report": Report, "lifted": Lifted}, _REFUSAL
)


def to_wire(message: Holds | FromInjector | FromAgent) -> Message:
    """`message` as it is sent."""
    if isinstance(message, Holds):
        return {key: value for key, value in to_json(message).items() if value is not None}
    return (_FROM_INJECTOR if isinstance(message, FromInjector) else _FROM_AGENT).to_wire(message)


def read_holds(raw: Message) -> Holds:
    """The answer to an agent's hello.

    Raises:
        WireError: it is something else.
    """
    return _FROM_INJECTOR.read_as(Holds, {key: value for key, value in raw.items() if key != "type"})


def from_injector(raw: Message) -> FromInjector:
    """What the injector says.

    Raises:
        WireError: it is no such message.
    """
    message: FromInjector = _FROM_INJECTOR.read(raw)
    return message


def from_agent(raw: Message) -> FromAgent:
    """What an agent says.

    Raises:
        WireError: it is no such message.
    """
    message: FromAgent = _FROM_AGENT.read(raw)
    return message


# ---- who talks ----


@dataclass(slots=True, eq=False)
class AgentSession:
    """One agent's connection. `attempt` and `process` tell it from those of the place's earlier and later processes."""

    place: Place
    node: int
    attempt: int
    process: ProcessId | None
    send: Callable[[Holds | FromInjector], None]
    is_held: bool = False

    @property
    def place_text(self) -> str:
        """Where it is, in words."""
        return f"rank {self.place}" if isinstance(self.place, int) else f"the snapshot process of node {self.node}"


class AgentListener(Protocol):
    """Who talks with agents: the injector."""

    def connected(self, session: AgentSession) -> None:
        """An agent said hello, and waits to be told where it is to be held."""
        ...

    def on_message(self, session: AgentSession, message: FromAgent) -> None:
        """An agent is held, or says how something went."""
        ...

    def closed(self, session: AgentSession) -> None:
        """An agent's connection ended."""
        ...
