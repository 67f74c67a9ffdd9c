"""Draws and runs that nobody made: for whoever judges or shows them."""

from __future__ import annotations

from dataclasses import replace

from mecefo_chaos.studies.papers.origin import Origin
from mecefo_chaos.studies.papers.reft.real.draws import Draw, plan_draw, survives
from mecefo_chaos.studies.papers.reft.real.measured import Measured
from mecefo_chaos.studies.papers.reft.real.rungs import RUNGS, RungRun, all_asked
from mecefo_chaos.studies.papers.reft.saving import Saving, Way

ORIGIN = Origin("2026-01-02", "a machine", "a command --seed 1")


def draws_of(num: int) -> tuple[Draw, ...]:
    """As the seed 1 has them, each with what has to come of it."""
    found = []
    for plan in (plan_draw(number, 1) for number in range(num)):
        is_borne = survives(plan)
        outcome = "restored" if is_borne else "refused"
        draw = Draw(plan.number, plan.kind, plan.scheme.name, plan.lost, is_borne, outcome, before=plan.before)
        found.append(replace(draw, state_bytes=1 << 20, protect_seconds=0.1, restore_seconds=0.2 if is_borne else None))
    return tuple(found)


def runs_of(num: int) -> tuple[RungRun, ...]:
    """Every rung so often, and two of eight nodes, each served as it had to be."""
    return tuple(
        RungRun(
            asked.rung,
            asked.seed,
            asked.expected,
            asked.expected,
            asked.lost,
            steps_lost={"peer": 0, "snapshot": 2, "parity": 1, "checkpoint": 7}.get(asked.expected),
            recovery_seconds=None if asked.expected == "stop" else 0.25 * (1 + RUNGS.index(asked.expected)),
            max_loss_deviation_ratio=None if asked.expected == "stop" else 0.0,
        )
        for asked in all_asked(num, 2, 1)
    )


def measured_of(num_draws: int = 240, num_runs: int = 3) -> Measured:
    """Of both so many."""
    return Measured(draws_of(num_draws), ORIGIN, runs_of(num_runs), ORIGIN)


def way_of(seconds: float, num: int = 5) -> Way:
    """Saves that stop training for about so long, and are safe at once."""
    each = tuple(seconds * (0.98 + 0.01 * place) for place in range(num))
    return Way(1, seconds, 0.0, num, each, (0.0,) * num)


def saving_of(ours_seconds: float, theirs_seconds: float, num: int = 5) -> Saving:
    """Saves that stop training for about so long; theirs of a share and of the whole state alike."""
    theirs = way_of(theirs_seconds, num)
    ways = {
        "snapshot, none": way_of(ours_seconds, num),
        "snapshot, xor": way_of(ours_seconds, num),
        "DCP async_save, thread": theirs,
        "DCP async_save, thread, whole state": theirs,
    }
    return Saving("2026-01-02", "a machine", "a command", 1 << 20, ways)
