"""The ranks of a job, what each of them holds, whether there is a coordinator, and the device errors reported.

Device errors are those of `telemetry` events, which faults of fidelity `telemetry` tell; none of them is measured, and
whoever shows them says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.analysis.job_traits import read_traits
from harness.analysis.regroups import takes_coordinator
from mecefo_runtime.job.layout import Layout, Span
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CoordinatorRestarted,
    Detected,
    JobStarted,
    LayoutTold,
    ProcessExited,
    ProcessStarted,
    RankStarted,
    Regrouped,
    Rejoined,
    RejoinRequested,
)
from mecefo_runtime.system.json_values import from_json
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected, Telemetry, Verified

FIDELITY = "telemetry"
STARTING, UP, GONE, RESTARTING, WAITING = "starting", "up", "gone", "restarting", "waiting"
"""States of a rank: not heard of yet; a member; lost; its new process is there; that waits for the next boundary."""
_MAX_RANKS = 4096
# NVIDIA has fewer.
_MAX_XIDS = 256


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """One rank's counters: ECC errors since the start of the run (single-bit, double-bit), and XIDs by number.

    `last_xid` is the newest one, 0 without any, as NVIDIA's DCGM exporter has it in DCGM_FI_DEV_XID_ERRORS.
    """

    ecc_sbe: int = 0
    ecc_dbe: int = 0
    last_xid: int = 0
    xids: Mapping[int, int] = field(default_factory=dict)


class Ranks:
    """The ranks of a job as its records tell them, in the order in which they come.

    `spans` is what each rank of the newest layout holds; it is empty until there is one, and stays so in an external
    job. `epoch` is the newest membership that was formed, or the newest attempt.
    """

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.spans: dict[int, Span] = {}
        self.epoch: int | None = None
        self.is_coordinator_up: bool | None = None
        self.devices: dict[int, DeviceErrors] = {}
        self._restarts_by_launcher = False

    def feed(self, record: Record) -> None:
        """Process one record of the main job."""
        if takes_coordinator(record):
            self.is_coordinator_up = False
        match record:
            case JobStarted():
                self._restarts_by_launcher = read_traits(record).restarts_by_launcher
                self.states = dict.fromkeys(range(min(record.num_ranks or 0, _MAX_RANKS)), STARTING)
            case AttemptStarted() if self._restarts_by_launcher:
                # Also of an attempt that comes to no step.
                self.epoch = max(record.attempt_number, self.epoch or 0)
            case RankStarted() if record.rank is not None:
                self._appear(record.rank, record.attempt)
            case LayoutTold():
                self._lay_out(record)
            case Regrouped():
                self.is_coordinator_up = True
                self._mark(record.members or (), UP)
                members = {*(record.members or ())}
                self._mark([rank for rank, state in self.states.items() if state == UP and rank not in members], GONE)
            case Detected():
                self._mark(record.lost, GONE)
            case Injected() if record.is_loss:
                self._mark(record.ranks, GONE)
            case Verified() if isinstance(record.evidence, Mapping) and record.evidence.get("handled_ranks"):
                # An exception that was to end them, and did not.
                self._mark(record.evidence["handled_ranks"], UP)
            case RejoinRequested():
                self._mark(record.ranks, WAITING)
            case Rejoined():
                self._mark(record.ranks, UP)
            case ProcessExited() if record.role == "rank" and self._restarts_by_launcher:
                if record.exit != 0 and record.exited_rank is not None:
                    self._mark([record.exited_rank], GONE)
            case CoordinatorRestarted():
                self.is_coordinator_up = True
            case ProcessStarted() if record.role == "coordinator":
                self.is_coordinator_up = True
            case Telemetry():
                self._add_errors(record)
            case _:
                pass

    def _appear(self, rank: int, attempt: int) -> None:
        """A rank says that it is there; one that was lost is not back before it is a member again."""
        state = self.states.get(rank, STARTING)
        if self._restarts_by_launcher:
            # Its launcher starts all ranks again: whoever is there is up. It may count fewer starts than there were.
            self.epoch = max(attempt, self.epoch or 0)
        if self._restarts_by_launcher or state == STARTING:
            self._mark([rank], UP)
        elif state == GONE:
            self._mark([rank], RESTARTING)

    def _lay_out(self, told: LayoutTold) -> None:
        replicas = from_json(Layout, told.layout, lenient=True).replicas if told.layout else ()
        if told.epoch is not None:
            self.epoch = told.epoch
        if replicas:
            self.spans = {span.rank: span for replica in replicas for span in replica.spans}

    def _mark(self, ranks: Iterable[int], state: str) -> None:
        for rank in ranks:
            if rank in self.states or len(self.states) < _MAX_RANKS:
                self.states[rank] = state

    def _add_errors(self, told: Telemetry) -> None:
        rank, xid = told.of_rank, told.xid
        if rank not in self.devices and len(self.devices) >= _MAX_RANKS:
            return
        known = self.devices.get(rank, DeviceErrors())
        self.devices[rank] = DeviceErrors(
            ecc_sbe=known.ecc_sbe + told.ecc_sbe,
            ecc_dbe=known.ecc_dbe + told.ecc_dbe,
            last_xid=xid,
            xids=_counted(known.xids, xid),
        )


def _counted(xids: Mapping[int, int], xid: int) -> Mapping[int, int]:
    """One more of a number; of very many numbers only those that came first are told apart."""
    if xid not in xids and len(xids) >= _MAX_XIDS:
        return xids
    return {**xids, xid: xids.get(xid, 0) + 1}
