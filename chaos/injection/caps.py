"""Enforces the limits on what is affected at once, when an incident is about to fire."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.experiment.limits import Limits
from chaos.plan.incident import Incident
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason


def may_fire(affected: Iterable[int], incident: Incident, limits: Limits, cluster: Cluster) -> Reason | None:
    """Why `incident` must not fire while faults are active on the ranks `affected`; None if it may."""
    ranks = frozenset(incident.target.ranks)
    if not ranks:
        return None
    return limits.violation(frozenset(affected) | ranks, cluster)


class ActiveRanks:
    """The ranks on which faults are active now: for their lifetime, and of losses until they are back."""

    def __init__(self) -> None:
        self._in_force: dict[int, frozenset[int]] = {}
        self._lost: set[int] = set()

    @property
    def ranks(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self._lost).union(*self._in_force.values())

    def begin(self, incident: Incident) -> None:
        """It is about to be applied."""
        ranks = frozenset(incident.target.ranks)
        self._in_force[incident.incident] = ranks
        if incident.is_loss:
            self._lost |= ranks

    def end(self, incident: Incident) -> None:
        """It was undone; ranks that it took down are still down."""
        self._in_force.pop(incident.incident, None)

    def on_event(self, event: Event) -> None:
        """Follow an event of the job."""
        if event.kind == "rejoined":
            self._lost -= set(event.fields["ranks"])
