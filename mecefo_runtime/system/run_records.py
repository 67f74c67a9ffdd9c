"""The events that a run tells of itself: the conductor, and the injector with its incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mecefo_runtime.system.json_values import LEFT_OUT
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record, called, omitted_if


class RunStarted(Record, kind="run_started", emitted_by="conductor"):
    """The run begins."""

    experiment: Any = None
    """The whole experiment."""
    experiment_hash: str | None = None
    """The hash of the experiment."""
    seed: Any = None
    """The seed of the plan."""
    gates: Any = None
    """The gates that the run is judged by."""
    dilation_ratio: float | None = None
    """Time dilation: how many times as long each compute segment lasts."""
    machine: Any = None
    """What this machine is."""
    own_host: tuple[str, ...] | None = None
    """Name and boot id of the host that records the run, and of every event without a host."""
    own_clock: str | None = None
    """The clock of the process that records the run, and of every event without a clock."""


class ClockSampled(Record, kind="clock_sampled", emitted_by="conductor"):
    """A process with another clock has connected."""

    other_clock: str = ""
    """The clock of that process."""
    other_host: tuple[str, ...] | None = None
    """Name and boot id of its host; null for a clock of the run's own host."""
    offset_seconds: float = 0.0
    """What is added to the times of that clock."""
    uncertainty_seconds: float = 0.0
    """By how much the mapped times are wrong at most: half of the best round trip."""
    drift_ratio: float = 0.0
    """How much of the time since the sample is added to this uncertainty."""
    num_samples: int = 0
    """Samples of that clock."""


class HostReached(Record, kind="host_reached", emitted_by="conductor"):
    """The agent of a host is ready: faults can be injected there, and its processes are observed."""

    reached: tuple[str, ...] = ()
    """Name and boot id of the host."""
    of_node: int | None = None
    """The node that the host is."""
    engine: str | None = None
    """The engine that started the agent."""
    addresses: tuple[str, ...] = ()
    """The addresses of its network interfaces."""
    num_starts: int = 1
    """How many times something was started there for it: 1, unless its stream has broken."""
    healed: tuple[str, ...] = ()
    """Faults that an earlier agent on the host had left, and that were undone now."""


class HostLost(Record, kind="host_lost", emitted_by="conductor"):
    """The agent of a host is gone, or silent for its lease: what happens there is not observed from then on."""

    lost: tuple[str, ...] = ()
    """Name and boot id of the host."""
    of_node: int | None = None
    """The node that the host is."""
    silent_seconds: float = 0.0
    """For how long nothing had come from it by then."""
    message: str = ""
    """Why."""


@dataclass(frozen=True, slots=True)
class PlannedIncident:
    """One entry of `incidents_planned`."""

    incident: int
    """The number of the incident, from 0."""
    fault: str = "unknown"
    """The kind of the fault."""
    parameters: Any = None
    """The parameters of the fault."""
    target: Any = None
    """The target as the experiment has it."""
    step: int | None = None
    """The step of the trigger."""
    phase: str | None = None
    """The phase of the trigger within the step."""
    in_save: str | None = field(default=None, metadata=LEFT_OUT)
    """The moment within the save of a checkpoint, as `injected` has it."""
    at_seconds: float | None = None
    """The time of the trigger, since the start of the job."""
    ranks: tuple[int, ...] = ()
    """Ranks of the target."""
    nodes: tuple[int, ...] = ()
    """Nodes of the target."""
    links: tuple[tuple[int, ...], ...] = ()
    """Links of the target, as pairs of ranks."""
    role: str | None = None
    """The role of the target, such as `coordinator`."""
    lifetime_steps: int | None = None
    """How long the fault lasts, in steps."""
    lifetime_seconds: float | None = None
    """How long the fault lasts."""
    repair_steps: int | None = None
    """When what it took is repaired, in steps after the injection."""
    repair_seconds: float | None = None
    """When what it took is repaired, after the injection."""
    retrigger: Any = "once"
    """At which attempts of the launcher it fires: `once`, `every-attempt` or a number."""
    then: str | None = field(default=None, metadata=LEFT_OUT)
    """The fault that follows when it is verified."""
    follows: int | None = field(default=None, metadata=LEFT_OUT)
    """The incident which it follows when that is verified."""
    draw: int | None = None
    """The incident whose random choices it repeats, or its own number."""
    is_optional: bool = False
    """Whether the run is not to blame if the job ends before the incident."""


class IncidentsPlanned(Record, kind="incidents_planned", emitted_by="conductor"):
    """The incidents of the run are planned."""

    incidents: tuple[PlannedIncident, ...] = ()
    """The planned incidents."""


class NodesStarting(Record, kind="nodes_starting", emitted_by="conductor"):
    """Containers are created (backend `docker`)."""

    num_nodes: int | None = None
    """Nodes of the job."""
    image: str | None = None
    """The image of their containers."""


class ContainerReady(Record, kind="container_ready", emitted_by="conductor"):
    """A container accepts commands."""

    container: str | None = None
    """`node-3`, `coordinator` or `links-of-node-3`."""
    container_attempt: int | None = None
    """The starts of that container, from 1."""
    start_seconds: float | None = None
    """From its creation until it accepts commands."""


class OfIncident(Record):
    """What is told of one incident."""

    incident: int
    """The number of the incident, from 0."""


class Held(OfIncident, kind="held", emitted_by="injector"):
    """A rank of the target is held at (`step`, `phase`), or the snapshot process of a node.

    The latter at the phase `encode` of the snapshot of `step`.
    """

    phase: str | None = None
    """The phase."""
    held_rank: int | None = omitted_if(None)
    """The rank."""
    held_node: int | None = omitted_if(None)
    """The node of the snapshot process."""


class Injected(OfIncident, kind="injected", emitted_by="injector"):
    """A fault was applied, at `step` (null where no step had begun)."""

    fault: str | None = None
    """The kind of the fault."""
    parameters: Mapping[str, Any] = {}
    """The parameters of the fault."""
    is_loss: bool = False
    """Whether its ranks are gone until they are repaired."""
    goes_on: bool = False
    """Whether it stays active until `undone`."""
    gives_notice: bool = omitted_if(False)
    """Whether nothing is lost yet: the job has time to release its ranks."""
    asks_to_leave: bool = omitted_if(False)
    """Whether it sent a signal that processes may handle."""
    requeue: int | None = omitted_if(None)
    """How often `chaos` starts the command again when it has ended of this fault; left out: no preemption."""
    is_latent: bool = omitted_if(False)
    """Whether it damaged stored state: that shows when something reads it."""
    target: Any = None
    """The target as the experiment has it."""
    phase: str | None = None
    """The phase of the trigger within the step."""
    in_save: str | None = omitted_if(None)
    """The moment within the save of a checkpoint: `after=file`, `after=rename`, `after=SIZE` or `during=async`."""
    save: Mapping[str, Any] = omitted_if({})
    """The state of that save: the `path` of the file, `num_bytes` of it that were there, and `offset`, the byte
    to which it was written when the process was stopped (`after=SIZE`)."""
    ranks: tuple[int, ...] = ()
    """Ranks that it affects."""
    nodes: tuple[int, ...] = ()
    """Nodes that it affects."""
    held_ranks: tuple[int, ...] = ()
    """Ranks that are held."""
    held_nodes: tuple[int, ...] = omitted_if(())
    """Nodes whose snapshot processes are held."""
    processes: tuple[Any, ...] = ()
    """Pid and start time of each affected process."""
    links: tuple[tuple[int, ...], ...] = ()
    """Affected links, as pairs of ranks."""


class Verified(OfIncident, kind="verified", emitted_by="injector"):
    """The effect of a fault was observed."""

    evidence: Any = None
    """What was observed."""
    took_effect_monotonic: float | None = omitted_if(None)
    """When the effect came, where a rank ended of it before it was verified otherwise."""


class WithReason(OfIncident):
    """An incident did not go as planned: `why` is the reason with its code, `reason` its sentence.

    Logs of earlier versions have the sentence alone.
    """

    reason: str | None = None
    """The sentence of `why`; older logs have it alone."""
    why: Reason | None = None
    """The reason with its code and fields (page *Reasons*)."""
    code: str | None = omitted_if(None)
    """The code of the reason alone."""

    @property
    def because(self) -> Reason | None:
        """The reason; without `why` the sentence, with its code or that of the event. None: the event has neither."""
        return self.why or _written(self.code or self.KIND, self.reason)


class WithoutEffect(WithReason):
    """An incident had no effect.

    `code` is that of `why`, or of its reason where the incident never fired; the fields after it say more of that.
    """

    phase_steps: tuple[tuple[int, int], ...] = omitted_if(())
    """Of an incident that never fired: steps in which the phase of the trigger came, as first and last of each
    interval."""
    phase_ranks: tuple[int, ...] = omitted_if(())
    """Of an incident that never fired: ranks in which the phase of the trigger came."""
    phases_seen: tuple[str, ...] = omitted_if(())
    """Of an incident that never fired: phases that came."""
    advice: str | None = omitted_if(None)
    """Options with which it would have fired."""


class Unverified(WithoutEffect, kind="unverified", emitted_by="injector"):
    """The effect of a fault was not observed, or the incident never fired."""


class NotDue(WithoutEffect, kind="not_due", emitted_by="injector"):
    """The incident was drawn for a time after the end of the job, or limits forbade it."""

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


class Undone(OfIncident, kind="undone", emitted_by="injector or conductor"):
    """A fault was undone."""

    fault: str | None = None
    """The kind of the fault; of the conductor."""
    evidence: Any = None
    """What was undone, with `by`: `chaos` or, where the injector was silent, `watchdog`."""
    ended_monotonic: float | None = omitted_if(None)
    """When the fault was no longer active, if that was before the checks for residue: at the end of its lifetime, or at
    the latest at the end of the run."""

    @property
    def ended_seconds(self) -> float:
        """When it was active no longer (CLOCK_MONOTONIC): to see that nothing is left of it may take a while."""
        return self.monotonic_seconds if self.ended_monotonic is None else self.ended_monotonic


class Outlasted(OfIncident, kind="outlasted", emitted_by="injector"):
    """A fault stayed active for longer than planned, until its effect was verified."""

    planned: str = ""
    """The planned lifetime."""


class UndoFailed(WithReason, kind="undo_failed", emitted_by="injector"):
    """A fault could not be undone."""


class Released(OfIncident, kind="released", emitted_by="injector"):
    """Held processes were released."""

    ranks: tuple[int, ...] = ()
    """Ranks that were held."""
    nodes: tuple[int, ...] = omitted_if(())
    """Nodes whose snapshot processes were held."""


class RepairStarted(OfIncident, kind="repair_started", emitted_by="conductor"):
    """What an incident took is started again."""

    nodes: tuple[int, ...] = ()
    """The nodes."""
    ranks: tuple[int, ...] = ()
    """The ranks."""


class Telemetry(Record, kind="telemetry", emitted_by="injector"):
    """Errors of a rank's device, written by a fault of fidelity `telemetry`, not measured."""

    of_rank: int = called("rank")
    """The rank."""
    xid: int
    """The XID."""
    ecc_sbe: int
    """Single-bit ECC errors to add to the counters of the device."""
    ecc_dbe: int
    """Double-bit ECC errors to add to the counters of the device."""
    record: str | None = None
    """The id by which the fault finds this event in the log."""


class Halted(Record, kind="halted", emitted_by="conductor"):
    """A halt condition became true, or the watchdog undid something because chaos did not run."""

    condition: str | None = None
    """The condition."""


class Aborted(Record, kind="aborted", emitted_by="conductor"):
    """A gate with `abort_on_fail` is certain to fail and ends the run."""

    gate: str | None = None
    """The gate."""
    value: float | None = None
    """The least that its figure can come to, in base units."""
    reason: str | None = None
    """The sentence of `why`; older logs have it alone."""
    incident: int | None = None
    """The incident whose figure it is, or null."""
    why: Reason | None = None
    """How the gate failed, as a reason with its code."""

    @property
    def because(self) -> Reason:
        """How the gate failed."""
        return self.why or _written(CERTAIN_TO_FAIL, self.reason) or Reason(CERTAIN_TO_FAIL, sentence=str(None))


class Interrupted(Record, kind="interrupted", emitted_by="conductor"):
    """A signal ended the run."""

    signal: str | None = None
    """The name of the signal."""


class RunOverlapped(Record, kind="run_overlapped", emitted_by="conductor"):
    """Another run of `chaos` shared the machine.

    Emitted when it is seen (looked for every second), and again when it has ended.
    """

    other_run: str = ""
    """Its name in the registry."""
    folder: str | None = None
    """Its folder; null where it is not readable: a run of another user."""
    uid: int | None = None
    """The number of its user."""
    began_monotonic: float | None = None
    """Since when both ran."""
    ended_monotonic: float | None = None
    """Until when both ran; null: it still runs."""


class Residue(Record, kind="residue", emitted_by="conductor"):
    """What the run left behind; all empty for a clean run."""

    processes: tuple[Any, ...] = ()
    """Pid, start time, `state` and `command` of each process."""
    undo_pending: tuple[Any, ...] = ()
    """Incidents that are not completely undone."""
    left: tuple[Any, ...] = ()
    """`{kind, what}` of each other thing: mounts, control groups, files that undo records name, network, rules, a
    damaged ledger."""


class RunEnded(Record, kind="run_ended", emitted_by="conductor"):
    """The run is over."""

    reason: str | None = None
    """`completed`, `interrupted`, `halted`, `aborted` or `failed`."""
    message: str | None = None
    """Why it failed, in words."""
    num_events: int | None = None
    """Lines of the log, this one among them."""


class Warned(Record, kind="warning", emitted_by="any"):
    """A warning."""

    message: str = ""
    """The text."""
