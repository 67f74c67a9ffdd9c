"""The events that a run tells of itself: the conductor, and the injector with its incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record, called, omitted_if, read_values


class RunStarted(Record, kind="run_started"):
    """The run begins; `experiment` is the whole experiment.

    `own_host` (name and boot id) and `own_clock` are those of the process that records the run, and of every event
    without a host or clock.
    """

    experiment: Any = None
    experiment_hash: str | None = None
    seed: Any = None
    gates: Any = None
    dilation_ratio: float | None = None
    machine: Any = None
    own_host: tuple[str, ...] | None = None
    own_clock: str | None = None


class ClockSampled(Record, kind="clock_sampled"):
    """A process with another clock than the run's has connected; `offset_seconds` are added to its times.

    Their error is at most `uncertainty_seconds`, plus `drift_ratio` of the time since the sample. `other_host` is a
    name and a boot id, None for a clock of the run's host.
    """

    other_clock: str = ""
    other_host: tuple[str, ...] | None = None
    offset_seconds: float = 0.0
    uncertainty_seconds: float = 0.0
    drift_ratio: float = 0.0
    num_samples: int = 0


@dataclass(frozen=True, slots=True)
class PlannedIncident:
    """One entry of `incidents_planned`."""

    incident: int
    fault: str = "unknown"
    parameters: Any = None
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
    retrigger: Any = "once"
    draw: int | None = None
    is_optional: bool = False

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> PlannedIncident:
        """Read what `to_dict` wrote, or an earlier version."""
        return cls(**read_values(cls, said))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "ranks": list(self.ranks), "nodes": list(self.nodes), "links": [*map(list, self.links)]}


class IncidentsPlanned(Record, kind="incidents_planned"):
    """The incidents that will be fired."""

    incidents: tuple[PlannedIncident, ...] = ()


class NodesStarting(Record, kind="nodes_starting"):
    """Containers are made."""

    num_nodes: int | None = None
    image: str | None = None


class ContainerReady(Record, kind="container_ready"):
    """A container takes orders."""

    container: str | None = None
    container_attempt: int | None = None
    start_seconds: float | None = None


class OfIncident(Record):
    """What is told of one incident."""

    incident: int


class Held(OfIncident, kind="held"):
    """A rank of the target is held, or the snapshot process of a node."""

    phase: str | None = None
    held_rank: int | None = omitted_if(None)
    held_node: int | None = omitted_if(None)


class Injected(OfIncident, kind="injected"):
    """A fault was applied; with `is_loss` its ranks are gone until repaired, with `goes_on` it lasts until undone.

    With `gives_notice` nothing was lost by then: the job has time to let the ranks go. One that `asks_to_leave` sent a
    signal that processes may handle. One that `is_latent` damaged stored state: it shows when that is read.
    """

    fault: str | None = None
    parameters: Mapping[str, Any] = {}
    is_loss: bool = False
    goes_on: bool = False
    gives_notice: bool = omitted_if(False)
    asks_to_leave: bool = omitted_if(False)
    is_latent: bool = omitted_if(False)
    target: Any = None
    phase: str | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    held_ranks: tuple[int, ...] = ()
    held_nodes: tuple[int, ...] = omitted_if(())
    processes: tuple[Any, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()


class Verified(OfIncident, kind="verified"):
    """The effect of a fault was seen; `took_effect_monotonic` is when it came, where a rank ended of it later."""

    evidence: Any = None
    took_effect_monotonic: float | None = omitted_if(None)


class WithReason(OfIncident):
    """An incident did not go as planned: `why` is the reason with its code, `reason` its sentence.

    Logs of earlier versions have the sentence alone.
    """

    reason: str | None = None
    why: Reason | None = None
    code: str | None = omitted_if(None)

    @property
    def because(self) -> Reason | None:
        """The reason; without `why` the sentence, with its code or that of the event. None: the event has neither."""
        return self.why or _written(self.code or self.KIND, self.reason)


class WithoutEffect(WithReason):
    """An incident had no effect.

    `code` is that of `why`, or of its reason where the incident never fired; the fields after it say more of that.
    """

    phase_steps: tuple[tuple[int, int], ...] = omitted_if(())
    phase_ranks: tuple[int, ...] = omitted_if(())
    phases_seen: tuple[str, ...] = omitted_if(())
    advice: str | None = omitted_if(None)


class Unverified(WithoutEffect, kind="unverified"):
    """The effect of a fault was not seen, or the incident never fired."""


class NotDue(WithoutEffect, kind="not_due"):
    """The time of an incident did not come, or limits forbade it."""

    @property
    def because(self) -> Reason:
        """The reason, as of every `WithReason`; one with the sentence `None` where the event has neither."""
        return self.why or _written(self.code or self.KIND, self.reason) or Reason(self.KIND, sentence=str(None))

    @property
    def is_after_the_end(self) -> bool:
        """Whether the job had ended by then."""
        return self.because.code == JOB_ENDED_BEFORE


JOB_ENDED_BEFORE, CERTAIN_TO_FAIL = "job_ended_before", "certain_to_fail"


def _written(code: str, sentence: str | None) -> Reason | None:
    return None if sentence is None else Reason(code, sentence=sentence)


class Undone(OfIncident, kind="undone"):
    """A fault was undone."""

    fault: str | None = None
    evidence: Any = None
    ended_monotonic: float | None = omitted_if(None)

    @property
    def ended_seconds(self) -> float:
        """When it was active no longer (CLOCK_MONOTONIC): to see that nothing is left of it may take a while."""
        return self.monotonic_seconds if self.ended_monotonic is None else self.ended_monotonic


class Outlasted(OfIncident, kind="outlasted"):
    """A fault stayed active for longer than `planned`, until its effect was seen."""

    planned: str = ""


class UndoFailed(WithReason, kind="undo_failed"):
    """A fault could not be undone."""


class Released(OfIncident, kind="released"):
    """Held ranks were let go, or the snapshot processes of nodes."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = omitted_if(())


class RepairStarted(OfIncident, kind="repair_started"):
    """What an incident took is started again."""

    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


class Telemetry(Record, kind="telemetry"):
    """Errors of a rank's device that a fault told, not measured."""

    of_rank: int = called("rank")
    xid: int
    ecc_sbe: int
    ecc_dbe: int
    record: str | None = None


class Halted(Record, kind="halted"):
    """A halt condition became true."""

    condition: str | None = None


class Aborted(Record, kind="aborted"):
    """A gate that is certain to fail ends the run."""

    gate: str | None = None
    value: float | None = None
    reason: str | None = None
    incident: int | None = None
    why: Reason | None = None

    @property
    def because(self) -> Reason:
        """How the gate failed."""
        return self.why or _written(CERTAIN_TO_FAIL, self.reason) or Reason(CERTAIN_TO_FAIL, sentence=str(None))


class Interrupted(Record, kind="interrupted"):
    """Somebody ended the run."""

    signal: str | None = None


class RunOverlapped(Record, kind="run_overlapped"):
    """Another run of chaos shared the machine: emitted when it is seen, and again when it has ended.

    Times are CLOCK_MONOTONIC seconds; `ended_monotonic` is None while it is there. `folder` is None where it is not
    readable: a run of another user, whose number is `uid`.
    """

    other_run: str = ""
    folder: str | None = None
    uid: int | None = None
    began_monotonic: float | None = None
    ended_monotonic: float | None = None


class Residue(Record, kind="residue"):
    """What the run left behind, in whatever words: none of it must be lost because it is said in another way."""

    processes: tuple[Any, ...] = ()
    undo_pending: tuple[Any, ...] = ()
    left: tuple[Any, ...] = ()


class RunEnded(Record, kind="run_ended"):
    """The run is over; its log has `num_events` lines, this one among them."""

    reason: str | None = None
    message: str | None = None
    num_events: int | None = None


class Warned(Record, kind="warning"):
    """A warning."""

    message: str = ""
