"""The events that a run tells of itself: the conductor, and the injector with its incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record, called, read_values


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Record):
    """The run begins; `experiment` is the whole experiment."""

    KIND: ClassVar[str] = "run_started"

    experiment: Any = None
    experiment_hash: str | None = None
    seed: Any = None
    gates: Any = None
    dilation_ratio: float | None = None
    machine: Any = None


@dataclass(frozen=True, slots=True)
class PlannedIncident:
    """One entry of `incidents_planned`, as far as figures are made from it."""

    incident: int
    fault: str = "unknown"
    target: Any = None
    step: int | None = None
    phase: str | None = None
    at_seconds: float | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()
    role: str | None = None
    lifetime_steps: int | None = None
    lifetime_seconds: float | None = None
    repair_steps: int | None = None
    repair_seconds: float | None = None

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> PlannedIncident:
        """As `chaos.plan.incident.Incident.to_dict` wrote it."""
        return cls(**read_values(cls, said))


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsPlanned(Record):
    """What is to be fired."""

    KIND: ClassVar[str] = "incidents_planned"

    incidents: tuple[PlannedIncident, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesStarting(Record):
    """Containers are made."""

    KIND: ClassVar[str] = "nodes_starting"

    num_nodes: int | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReady(Record):
    """A container takes orders."""

    KIND: ClassVar[str] = "container_ready"

    container: str | None = None
    container_attempt: int | None = None
    start_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfIncident(Record):
    """What is told of one incident."""

    incident: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(OfIncident):
    """A rank of the target is held, or the snapshot process of a node."""

    KIND: ClassVar[str] = "held"

    phase: str | None = None
    held_rank: int | None = None
    held_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected(OfIncident):
    """A fault was applied; with `is_loss` its ranks are gone until repaired, with `goes_on` it lasts until undone.

    With `gives_notice` nothing was lost by then: the job has time to let the ranks go. One that `asks_to_leave` sent a
    signal that processes may handle. One that `is_latent` damaged stored state: it shows when that is read.
    """

    KIND: ClassVar[str] = "injected"

    fault: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_loss: bool = False
    goes_on: bool = False
    gives_notice: bool = False
    asks_to_leave: bool = False
    is_latent: bool = False
    target: Any = None
    phase: str | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    held_ranks: tuple[int, ...] = ()
    held_nodes: tuple[int, ...] = ()
    processes: tuple[Any, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(OfIncident):
    """The effect of a fault was seen; `took_effect_monotonic` is when it came, where a rank ended of it later."""

    KIND: ClassVar[str] = "verified"

    evidence: Any = None
    took_effect_monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified(OfIncident):
    """It was not. `why` is the reason with its code; logs of earlier versions have the sentence alone, `reason`.

    `code` is that of `why`, or of its reason where the incident never fired; the fields after it say more of that.
    """

    KIND: ClassVar[str] = "unverified"

    reason: str | None = None
    why: Reason | None = None
    code: str | None = None
    phase_steps: tuple[tuple[int, int], ...] = ()
    phase_ranks: tuple[int, ...] = ()
    phases_seen: tuple[str, ...] = ()
    advice: str | None = None

    @property
    def because(self) -> Reason | None:
        """The reason; without `why` the sentence, with its code or that of the event. None: the event has neither."""
        return self.why or _written(self.code or self.KIND, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDue(OfIncident):
    """The time of an incident did not come, or limits forbade it; the fields are those of `Unverified`."""

    KIND: ClassVar[str] = "not_due"

    reason: str | None = None
    why: Reason | None = None
    code: str | None = None
    phase_steps: tuple[tuple[int, int], ...] = ()
    phase_ranks: tuple[int, ...] = ()
    phases_seen: tuple[str, ...] = ()
    advice: str | None = None

    @property
    def because(self) -> Reason:
        """As `Unverified.because`."""
        return self.why or _written(self.code or self.KIND, self.reason) or Reason(self.KIND, sentence=str(None))

    @property
    def is_after_the_end(self) -> bool:
        """Whether the job had ended by then."""
        return self.because.code == JOB_ENDED_BEFORE


JOB_ENDED_BEFORE, CERTAIN_TO_FAIL = "job_ended_before", "certain_to_fail"


def _written(code: str, sentence: str | None) -> Reason | None:
    return None if sentence is None else Reason(code, sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(OfIncident):
    """A fault was undone."""

    KIND: ClassVar[str] = "undone"

    fault: str | None = None
    evidence: Any = None
    ended_monotonic: float | None = None

    @property
    def ended_seconds(self) -> float:
        """When it was active no longer (CLOCK_MONOTONIC): to see that nothing is left of it may take a while."""
        return self.monotonic_seconds if self.ended_monotonic is None else self.ended_monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlasted(OfIncident):
    """A fault stayed active for longer than `planned`, until its effect was seen."""

    KIND: ClassVar[str] = "outlasted"

    planned: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoFailed(OfIncident):
    """It could not be."""

    KIND: ClassVar[str] = "undo_failed"

    reason: str | None = None
    why: Reason | None = None
    code: str | None = None

    @property
    def because(self) -> Reason | None:
        """As `Unverified.because`."""
        return self.why or _written(self.KIND, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(OfIncident):
    """Held ranks were let go, or the snapshot processes of nodes."""

    KIND: ClassVar[str] = "released"

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStarted(OfIncident):
    """What an incident took is started again."""

    KIND: ClassVar[str] = "repair_started"

    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(Record):
    """Errors of a rank's device that a fault told, not measured."""

    KIND: ClassVar[str] = "telemetry"

    of_rank: int = called("rank")
    xid: int
    ecc_sbe: int
    ecc_dbe: int
    record: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted(Record):
    """A halt condition became true."""

    KIND: ClassVar[str] = "halted"

    condition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted(Record):
    """A gate that is certain to fail ends the run."""

    KIND: ClassVar[str] = "aborted"

    gate: str | None = None
    value: float | None = None
    reason: str | None = None
    incident: int | None = None
    why: Reason | None = None

    @property
    def because(self) -> Reason:
        """How the gate failed."""
        return self.why or _written(CERTAIN_TO_FAIL, self.reason) or Reason(CERTAIN_TO_FAIL, sentence=str(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(Record):
    """Somebody ended the run."""

    KIND: ClassVar[str] = "interrupted"

    signal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverlapped(Record):
    """Another run of chaos shared the machine: emitted when it is seen, and again when it has ended.

    Times are CLOCK_MONOTONIC seconds; `ended_monotonic` is None while it is there. `folder` is None where it is not
    readable: a run of another user, whose number is `uid`.
    """

    KIND: ClassVar[str] = "run_overlapped"

    other_run: str = ""
    folder: str | None = None
    uid: int | None = None
    began_monotonic: float | None = None
    ended_monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residue(Record):
    """What the run left behind, in whatever words: none of it must be lost because it is said in another way."""

    KIND: ClassVar[str] = "residue"

    processes: tuple[Any, ...] = ()
    undo_pending: tuple[Any, ...] = ()
    left: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Record):
    """The run is over; its log has `num_events` lines, this one among them."""

    KIND: ClassVar[str] = "run_ended"

    reason: str | None = None
    message: str | None = None
    num_events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Record):
    """A warning."""

    KIND: ClassVar[str] = "warning"

    message: str = ""
