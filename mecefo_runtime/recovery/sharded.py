"""What moves before an epoch where each holder of a unit has the optimizer state of its share alone (ZeRO-1).

Then peers no longer hold each other's state. While all shares of a version are alive, new holders get them from the
old ones. A lost rank's share can come from a snapshot of the same version; otherwise all ranks roll back to an older
version. No published system combines a takeover with such an optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.share import WHOLE, Share, share_of
from mecefo_runtime.job.state_source import Offer, PeerSource, Piece, Version, plan_pieces
from mecefo_runtime.recovery.commit import Decision


def plan_shares(
    layout: Layout,
    reports: Mapping[int, RankReport],
    decision: Decision,
    snapshots: Sequence[Offer],
    withheld: Collection[tuple[str, int]] = (),
) -> tuple[Decision, tuple[Piece, ...], tuple[str, ...]]:
    """How the ranks of `layout` get their shares of the last version that can be had without going back.

    `reports` are those of all survivors that hold state; of `snapshots` those of that version count. `withheld` says
    which units are not to be asked for of which rank. Returns (what becomes of the step in flight, pieces, units of
    which a share is missing). A step that nobody has applied yet is given up where the one before can be completed.
    """
    decisions = [decision]
    if decision.commit is not None and all(r.committed_step < decision.commit.step for r in reports.values()):
        decisions.append(replace(decision, committed_step=decision.commit.step - 1, commit=None))
    outcomes = [(one, *_pieces(layout, reports, one, snapshots, withheld)) for one in decisions]
    return next((outcome for outcome in outcomes if not outcome[-1]), outcomes[0])


def _pieces(
    layout: Layout,
    reports: Mapping[int, RankReport],
    decision: Decision,
    snapshots: Sequence[Offer],
    withheld: Collection[tuple[str, int]],
) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
    lineage = next((report.lineage for report in reports.values()), "")
    version = Version(decision.committed_step, lineage)
    offers = [offer for offer in snapshots if offer.version == version]
    in_place = {rank: _in_place(layout, rank, report, decision) for rank, report in reports.items()}
    for rank, report in reports.items():
        shares = _shares(report, decision)
        given = {unit: had for unit, had in shares.items() if (unit, rank) not in withheld}
        offers.append(Offer(version, PeerSource(rank), given))
    return plan_pieces(layout, offers, in_place)


def _shares(report: RankReport, decision: Decision) -> dict[str, frozenset[Share]]:
    """What a rank has of the version that counts: without gradients it cannot apply a step."""
    shares = {unit: {share} for unit, share in report.shares.items()}
    if decision.commit is None:
        for unit, given_away in report.given_away_shares.items():
            shares.setdefault(unit, set()).update(given_away)
    return {unit: frozenset(had) for unit, had in shares.items()}


def _in_place(layout: Layout, rank: int, report: RankReport, decision: Decision) -> frozenset[str]:
    """The units of which a rank needs nothing: all parameters are there, and the right share of the moments."""
    holders = layout.holders()
    return frozenset(
        unit
        for unit in report.holdings
        if rank in holders.get(unit, ())
        and report.shares.get(unit) == share_of(rank, holders[unit])
        # Who applies a step late does not get the parameters that others update.
        and (decision.commit is None or report.shares[unit] == WHOLE)
    )
