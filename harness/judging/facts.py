"""Facts of a run as reasons, for the verdict, the caveats and the reports; their words: `shared_texts`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.analysis.attribution import UnplannedLoss
from harness.analysis.command.attempts import Attempt
from harness.analysis.command.generations import Overlap
from harness.analysis.resume.differences import Difference
from harness.analysis.resume.resumes import Resume
from harness.judging.shared_texts import shared_text
from harness.judging.summary import Summary, UnplannedLossSummary
from mecefo_runtime.system.reason import Reason


def unplanned_loss(loss: UnplannedLossSummary | UnplannedLoss) -> Reason:
    """A loss that no fault explains."""
    return Reason(
        "unplanned_loss",
        ranks=loss.ranks,
        role=loss.role,
        step=loss.step,
        exit_codes=loss.exit_codes,
        pids=loss.pids,
        attempts=loss.attempts,
    )


def unplanned_words(loss: UnplannedLossSummary) -> str:
    """`Rank 3 was lost after step 57 (killed by SIGKILL), which no fault explains`."""
    return shared_text(unplanned_loss(loss))


def ranks_resumed_apart(attempt: Attempt) -> Reason:
    """The ranks of an attempt that continued from different steps, as [ranks, step] for each."""
    by_step: dict[int, list[int]] = {}
    for rank, after in attempt.resumed_after.items():
        by_step.setdefault(after, []).append(rank)
    return Reason(
        "ranks_resumed_apart", attempt=attempt.number, steps=[[ranks, after] for after, ranks in by_step.items()]
    )


def overlap_of(one: Overlap) -> Reason:
    """Processes of an earlier attempt that trained alongside a later one, or were only there."""
    common = {
        "attempt": one.attempt,
        "earlier": one.earlier,
        "ranks": one.ranks,
        "alive_seconds": one.alive_seconds,
    }
    if not one.steps and not one.saves:
        return Reason("there_beside_later_attempt", **common)
    return Reason(
        "trained_beside_later_attempt",
        **common,
        training_seconds=one.training_seconds,
        steps=one.steps,
        saves=one.saves,
    )


def training_differs(summary: Summary, one: Resume) -> Reason:
    """What a restart has changed."""
    samples = None
    if one.against == "before" and summary.samples_repeated is not None:
        figures = {"repeated": summary.samples_repeated, "size": summary.samples_size, "missed": summary.samples_missed}
        samples = {key: value for key, value in figures.items() if value is not None}
    against = one.against if one.against == "baseline" else None
    found = [_told(difference) for difference in one.judged]
    return Reason("training_differs", attempt=one.attempt, differences=found, against=against, samples=samples)


def _told(difference: Difference) -> dict[str, Any]:
    return {key: value for key, value in asdict(difference).items() if value is not None}
