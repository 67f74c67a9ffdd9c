"""Why it is not known whether a job recovers from an incident, with what was damaged."""

from __future__ import annotations

from chaos.faults import registry
from harness.analysis.incident import MeasuredIncident
from harness.analysis.undecided import LEFT_IN_ORDER
from mecefo_runtime.system.reason import Reason

_SCOPE_OF_SNAPSHOTS = "node"


def why_undecided(incident: MeasuredIncident) -> Reason | None:
    """A reason of `harness.judging.shared_texts`; None where the recovery is decided."""
    why = incident.undecided
    if why is None or why.code == LEFT_IN_ORDER:
        return why
    kind = registry().get(incident.fault)
    what = "snapshot" if kind is not None and kind.scope == _SCOPE_OF_SNAPSHOTS else "checkpoint"
    return Reason(why.code, what=what, **why.fields)
