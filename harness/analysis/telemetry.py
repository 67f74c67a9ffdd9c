"""Device errors by rank as `telemetry` events tell them: what an exporter shows beside what was measured.

None of it is measured: the events are those of faults of fidelity `telemetry`, and whoever shows them says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mecefo_runtime.system.events import Event

FIDELITY = "telemetry"


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """One rank's counters: ECC errors since the start of the run (single-bit, double-bit), and XIDs by number.

    `last_xid` is the newest one, 0 without any, as NVIDIA's DCGM exporter has it in DCGM_FI_DEV_XID_ERRORS.
    """

    ecc_sbe: int = 0
    ecc_dbe: int = 0
    last_xid: int = 0
    xids: Mapping[int, int] = field(default_factory=dict)


def add_errors(known: DeviceErrors, event: Event) -> DeviceErrors:
    """The counters of a rank after one more `telemetry` event."""
    fields, xid = event.fields, int(event.fields["xid"])
    return DeviceErrors(
        ecc_sbe=known.ecc_sbe + int(fields["ecc_sbe"]),
        ecc_dbe=known.ecc_dbe + int(fields["ecc_dbe"]),
        last_xid=xid,
        xids={**known.xids, xid: known.xids.get(xid, 0) + 1},
    )
