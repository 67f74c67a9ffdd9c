"""What the coordinator says about a new epoch: the message to its members, and the event in the log."""

from __future__ import annotations

from collections.abc import Mapping

from mecefo_runtime.comm.messages import Form
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.snapshot_interval import Failures
from mecefo_runtime.membership.member_table import Member
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.recovery.regroup import RegroupPlan
from mecefo_runtime.system.devices import choose_way
from mecefo_runtime.system.job_records import LayoutTold
from mecefo_runtime.system.json_values import to_json


def form_message(
    plan: RegroupPlan,
    members: Mapping[int, Member],
    *,
    epoch: int,
    reason: str,
    lineage: str,
    tells_commits: bool,
    ratings: Costs | None,
    snapshot_processes: Mapping[int, str],
    failures: Failures,
) -> Form:
    """The message that makes `members`, by rank, form `epoch`; the same for all.

    `tells_commits`: the leader is to tell the coordinator of every step that is committed. `ratings`: by what the
    members pad their compute. `snapshot_processes`: the addresses of those that are there, by node. `failures`: what
    has been lost so far.
    """
    return Form(
        epoch=epoch,
        members=plan.members,
        leader=_leader(members),
        addresses={rank: member.address for rank, member in members.items()},
        layout=plan.layout,
        resume_step=plan.decision.committed_step + 1,
        device_way=choose_way({rank: member.nccl_device for rank, member in members.items()}),
        lineage=lineage,
        reason=reason,
        pieces=plan.pieces,
        background=plan.background,
        commit=plan.decision.commit,
        measure_transfer=all(member.bytes_per_second is None for member in members.values()),
        tells_commits=tells_commits,
        returns_to=plan.returns_to,
        history=plan.decision.history,
        ratings=ratings,
        snapshot_processes=snapshot_processes,
        failures=failures,
        completion=plan.completion,
    )


def layout_event(plan: RegroupPlan, cluster: Cluster, costs: Costs, form: Form) -> LayoutTold:
    """The event of the new layout; `form` is the message of the same epoch."""
    shards, completion = plan.layout.assignment, plan.completion
    return LayoutTold(
        epoch=form.epoch,
        reason=form.reason,
        group_backend=form.device_way,
        members=plan.members,
        layout=to_json(plan.layout),
        degraded_layers=plan.layout.num_degraded_layers,
        projected_layers=plan.layout.num_projected_layers,
        projected_saved_ratio=costs.projected_saved_seconds / costs.layer_seconds,
        num_transfers=len(plan.transfers),
        num_fetched_in_background=sum(shadow.source is not None for shadow in plan.background.shadows),
        commit_step=plan.decision.commit.step if plan.decision.commit else None,
        resume_step=form.resume_step,
        predicted_step_seconds=step_seconds(plan.layout, costs),
        failure_free_step_seconds=step_seconds(configured_layout(cluster), costs),
        stack_depth=None if shards is None else shards.depth,
        kept_microbatches=None if completion is None else completion.num_kept,
        shared_out_microbatches=None if completion is None else plan.layout.num_microbatches - completion.num_kept,
        lost_work_ratio=None if completion is None else completion.lost_work_ratio,
    )


def _leader(members: Mapping[int, Member]) -> int:
    """The first who can say again what the last leader may have died before saying: that a step was committed."""
    first = min(members)
    reports = {rank: members[rank].report for rank in sorted(members)}
    return next((rank for rank, report in reports.items() if report.totals or report.ready), first)
