"""Why it stays undecided whether a job recovers from an incident, in words."""

from __future__ import annotations

from chaos.faults import registry
from harness.analysis.incident import MeasuredIncident
from harness.analysis.undecided import LEFT_IN_ORDER, Undecided

_SCOPE_OF_SNAPSHOTS = "node"


def undecided_words(incident: MeasuredIncident) -> str | None:
    """As the rest of a sentence about `incident`; None where that is decided."""
    why = incident.undecided
    if why is None:
        return None
    if why.code == LEFT_IN_ORDER:
        after = f" after step {why.step}" if why.step else ""
        return f"the job left in order{after}, checkpoint of step {why.saved_step}, restart not tried"
    kind = registry().get(incident.fault)
    what = "snapshot" if kind is not None and kind.scope == _SCOPE_OF_SNAPSHOTS else "checkpoint"
    return f"nothing can have read the damaged {what}: {_unread_words(what, why)}"


def _unread_words(what: str, why: Undecided) -> str:
    match why.code:
        case "put_back":
            return "it was put back before the restart (--for says when)"
        case "newer_saved":
            return f"a newer {what}, of step {why.saved_step}, was saved before the restart"
        case _:
            return "no restart came after it"
