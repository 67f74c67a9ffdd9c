"""Violations by a job that trains on after a fault, and the incident that answers for each.

A job that commits steps after a fault has recovered only if it trains as it must up to the end of the run: with finite
losses and parameters, replicas that agree, no process of an earlier attempt alongside it, and from a state that no
fault has damaged. Otherwise training continued.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Protocol

from chaos.faults import registry
from harness.analysis.command.finite_values import NotFinite
from harness.analysis.command.generations import Overlap
from harness.analysis.command.replica_state import Difference
from harness.analysis.steps import Steps
from mecefo_runtime.system.command_records import LossNotFinite, StateChecksums
from mecefo_runtime.system.job_records import RankFinished

LOSS = "loss_not_finite"
PARAMETERS = "parameters_not_finite"
REPLICAS = "replicas_differ"
GENERATIONS = "generations_overlap"
DAMAGED = "damaged_state_loaded"
CODES = (LOSS, PARAMETERS, REPLICAS, GENERATIONS, DAMAGED)


@dataclass(frozen=True, slots=True)
class Violation:
    """`code` is one of `CODES`; `since_seconds` is when it was first seen (CLOCK_MONOTONIC), None: at the end."""

    code: str
    since_seconds: float | None = None


class Injection(Protocol):
    """An incident as far as it matters here; see `incident.MeasuredIncident`."""

    @property
    def incident(self) -> int:
        """Its number."""

    @property
    def fault(self) -> str:
        """The kind of its fault."""

    @property
    def injected(self) -> float | None:
        """When it was injected."""

    @property
    def verified(self) -> float | None:
        """When its effect was seen."""

    @property
    def is_of_launcher(self) -> bool:
        """Whether it took the launcher or the store of an external job away."""


class Latent(Protocol):
    """An incident whose damage another one may have made the job read."""

    @property
    def incident(self) -> int:
        """Its number."""

    @property
    def read_by(self) -> int | None:
        """The number of that other one."""


def changes_values(fault: str) -> bool:
    """Whether the fault corrupts numbers."""
    kind = registry().get(fault)
    return kind is not None and kind.changes_values


def is_judged_later(incident: Injection) -> bool:
    """Whether a step after it shows only that training continued, as long as the job runs.

    The effect on numbers shows later, and so does whether ranks without a launcher train on alongside new ones.
    """
    return changes_values(incident.fault) or incident.is_of_launcher


def lasting_loss(steps: Steps) -> Violation | None:
    """The loss was not finite up to the last step that reported one."""
    since: float | None = None
    for step in reversed(steps.every):
        if step.loss is None or step.is_left_out:
            continue
        if isfinite(step.loss):
            break
        since = step.committed_seconds
    return None if since is None else Violation(LOSS, since)


def lasting_loss_of_others(told: Iterable[LossNotFinite], looks: Iterable[StateChecksums]) -> Violation | None:
    """The same for ranks that report no steps: they report the first such loss, and then one with each look."""
    newest = {look.rank: look.loss for look in looks if look.loss is not None}
    lasting = [one.monotonic_seconds for one in told if not isfinite(newest.get(one.rank, nan))]
    return Violation(LOSS, min(lasting)) if lasting else None


def lasting_differences(differences: Sequence[Difference], looks: Iterable[StateChecksums]) -> Violation | None:
    """Replicas which agreed before the first fault differed up to the end."""
    if not differences:
        return None
    first = min(differences, key=lambda one: one.since_step)
    times = [look.monotonic_seconds for look in looks if look.step == first.since_step and look.rank in first.ranks]
    return Violation(REPLICAS, max(times, default=None))


def find_diverged_units(finished: Iterable[RankFinished]) -> dict[str, dict[int, int]] | None:
    """Units (layers, embedding, head) of which the ranks that hold them end up with different state.

    Returns unit -> {rank: checksum} for those that differ; None when no rank told its checksums.
    """
    held: dict[str, dict[int, int]] = {}
    for record in finished:
        if record.rank is not None:
            for unit, checksum_of_unit in record.checksums.items():
                held.setdefault(unit, {})[record.rank] = checksum_of_unit
    if not held:
        return None
    return {unit: ranks for unit, ranks in sorted(held.items()) if len(set(ranks.values())) > 1}


def of_parameters(found: Sequence[NotFinite]) -> Violation | None:
    """Parameters were not finite up to the last look."""
    return Violation(PARAMETERS, min(one.since_seconds for one in found)) if found else None


def of_divergence(finished: Iterable[RankFinished]) -> Violation | None:
    """Ranks of the built-in runtime ended with different state of one unit."""
    return Violation(REPLICAS) if find_diverged_units(finished) else None


def of_generations(overlaps: Iterable[Overlap]) -> Iterator[Violation]:
    """Processes of an earlier attempt trained alongside a later one."""
    return (Violation(GENERATIONS, one.since_seconds) for one in overlaps if one.is_violation)


def of_loads(damaged: Iterable[int], incidents: Iterable[Latent]) -> Iterator[tuple[int, str]]:
    """Of each incident whose damage was loaded without an error, and of the one for which it was: the violation."""
    read_by = {one.incident: one.read_by for one in incidents}
    for number in damaged:
        yield number, DAMAGED
        if (reader := read_by.get(number)) is not None:
            yield reader, DAMAGED


def by_incident(violations: Iterable[Violation], incidents: Sequence[Injection]) -> dict[int, tuple[str, ...]]:
    """The codes of the violations that each incident answers for.

    Where faults had corrupted numbers by then, all of these do: it is not known which of them it was. Otherwise it is
    the one injected last. Two generations are the work of the last one in any case. What was wrong to the end was so
    after each later incident, too: the job has recovered from none of them. For what was wrong before the first one
    none answers.
    """
    injected = sorted(
        (one.injected, one.incident, changes_values(one.fault))
        for one in incidents
        if one.injected is not None and one.verified is not None
    )
    times = [at for at, _, _ in injected]
    found: dict[int, dict[str, None]] = {}
    for violation in violations:
        end = len(times) if violation.since_seconds is None else bisect_right(times, violation.since_seconds)
        answering = [number for _, number, _ in injected[max(0, end - 1) : end]]
        if not answering:
            continue
        if violation.code != GENERATIONS:
            corrupting = [number for _, number, is_corrupting in injected[:end] if is_corrupting]
            answering = [*(corrupting or answering), *(number for _, number, _ in injected[end:])]
        for number in answering:
            found.setdefault(number, {})[violation.code] = None
    return {number: tuple(codes) for number, codes in found.items()}
