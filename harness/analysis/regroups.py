"""When training stood still: regroups of the membership, and the times without a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.steps import CommittedStep
from mecefo_runtime.membership.coordinator import JOB_FAILED
from mecefo_runtime.system.events import Event

_FIRST_LAYOUT = "start"
_LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Stall:
    """From the first sign of a change of membership (a detection, or the layout of a rejoin) to the end of its regroup.

    One stall holds several epochs when a second loss comes before the first regroup is done. `regrouped_seconds` is
    None when the stall ended otherwise: training went on without a regroup, or the job ended. `is_loss` tells a loss
    from a mere rejoin; `is_restart` one after which all ranks were started again.
    """

    began_seconds: float
    ended_seconds: float
    regrouped_seconds: float | None
    transfer_seconds: float
    is_loss: bool
    is_restart: bool = False


def read_stalls(main: Iterable[Event], steps: Sequence[CommittedStep], ended_seconds: float) -> tuple[Stall, ...]:
    """The stalls of a job in the order of time; `main` holds its events by time, `steps` its steps by commit."""
    stalls: list[Stall] = []
    since: float | None = None
    is_loss = is_restart = False
    for event in main:
        at = event.monotonic_seconds
        if since is not None and (began := _began_between(steps, since, at)) is not None:
            stalls.append(Stall(since, began, None, 0.0, is_loss, is_restart))
            since, is_loss, is_restart = None, False, False
        if event.kind == "detected" or (event.kind == "layout" and event.fields.get("reason") != _FIRST_LAYOUT):
            since = at if since is None else since
            is_loss = is_loss or event.kind == "detected" or event.fields.get("reason") == _LOSS
        elif event.kind == "restarting":
            since, is_restart = at if since is None else since, True
        elif event.kind == "regrouped" and event.fields.get("reason") != _FIRST_LAYOUT:
            transfer = float(event.fields.get("transfer_seconds", 0.0))
            seconds = float(event.fields.get("group_seconds", 0.0)) + transfer
            began = at - seconds if since is None else since
            is_loss = is_loss or event.fields.get("reason") == _LOSS
            stalls.append(Stall(began, at, at, min(transfer, at - began), is_loss, is_restart))
            since, is_loss, is_restart = None, False, False
    if since is not None:
        stalls.append(Stall(since, max(since, ended_seconds), None, 0.0, is_loss, is_restart))
    return tuple(stalls)


def coordinator_downs(main: Iterable[Event], ended_seconds: float) -> tuple[tuple[float, float], ...]:
    """The times (from, to) in which the job had no coordinator."""
    downs: list[tuple[float, float]] = []
    since: float | None = None
    for event in main:
        if event.kind == "coordinator_restarted" and since is not None:
            downs.append((since, event.monotonic_seconds))
            since = None
        elif since is None and takes_coordinator(event):
            since = event.monotonic_seconds
    return (*downs, (since, max(since, ended_seconds))) if since is not None else tuple(downs)


def takes_coordinator(event: Event) -> bool:
    """Whether the job has no coordinator from then on: it was affected, or ended otherwise than with the job."""
    if event.kind == "injected":
        return "role=coordinator" in str(event.fields.get("target"))
    is_exit = event.kind == "process_exited" and event.fields.get("role") == "coordinator"
    return is_exit and event.fields.get("exit") not in (0, JOB_FAILED)


def _began_between(steps: Sequence[CommittedStep], since: float, until: float) -> float | None:
    """When the first step began that both began and committed in that time: training was not standing still."""
    return next((s.began_seconds for s in steps if since < s.began_seconds and s.committed_seconds < until), None)
