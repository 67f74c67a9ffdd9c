"""Builds what a rank needs to train in a new epoch: its state, received over the epoch's groups, and its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.messages import Form, Received
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.share import Share
from mecefo_runtime.model.data import Corpus, read_corpus
from mecefo_runtime.model.held_data import HeldData
from mecefo_runtime.planners import placement_of
from mecefo_runtime.snapshots.keeping import Keeping, of_rank
from mecefo_runtime.state.fetch import Fetching
from mecefo_runtime.state.holdings import Holdings
from mecefo_runtime.state.traffic import Traffic
from mecefo_runtime.state.transfer import keep_own, move_units
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.step.calibrate import measure_transfer
from mecefo_runtime.step.degraded_layers import DegradedLayers
from mecefo_runtime.step.epoch import Epoch
from mecefo_runtime.step.pipeline import Leaving, Pipeline
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE
from mecefo_runtime.system.dilation import Pacer


@dataclass(frozen=True, slots=True)
class Built:
    """An epoch, what this rank held before it, and how its state arrived.

    `transferred` is (seconds, bytes, by kind of source), `bytes_per_second` what was measured, None: nothing was.
    """

    epoch: Epoch
    held: Mapping[tuple[str, Share], UnitState]
    transferred: tuple[float, int, tuple[Received, ...]]
    bytes_per_second: float | None


class EpochBuilder:
    """Makes the epochs of one rank, whose tensors lie on `device`."""

    def __init__(
        self,
        job: JobConfig,
        rank: int,
        device: torch.device,
        pacer: Pacer,
        traffic: Traffic,
        holdings: Holdings,
        keeping: Keeping,
        announce: Callable[[int, str], None],
    ) -> None:
        self._job = job
        self._rank = rank
        self._device = device
        self._pacer = pacer
        self._traffic = traffic
        self._holdings = holdings
        self._keeping = keeping
        self._announce = announce
        self._corpus = Corpus(read_corpus(job.data), job.sequence_length, job.seed)
        self._placement = placement_of(job)

    def build(self, form: Form, groups: Groups, distrusted: Collection[str], leaving: Leaving) -> Built:
        """Make the epoch of `form` in its `groups`; units `distrusted` are not kept.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a peer is gone, or what is stored is damaged or gone.
            mecefo_runtime.state.transfer.StateCorrupt: units arrived damaged.
        """
        layout, background, rank = form.layout, form.background, self._rank
        speed = measure_transfer(groups, self._device, self._traffic) if form.measure_transfer else None
        pieces = of_rank(form.pieces, rank)
        incoming, goes_back = {piece.unit for piece in pieces}, form.returns_to is not None
        told = layout, background, distrusted, incoming, STEP_STATS_SIZE
        state, held = self._holdings.build(*told, restores=goes_back)
        if form.transfers:
            self._announce(form.resume_step, "transfer")
        moved = move_units(groups, state.units, held, form.transfers, self._traffic)
        keep_own(rank, pieces, state.units, held)
        transferred = self._keeping.restore(form, pieces, state.units, moved)
        with self._pacer.segment(None):
            degraded = DegradedLayers(layout, rank, state, self._job, background, form.completion)
        ratings = Ratings(form.ratings, layout, rank, reduces_by_link=self._traffic.link is not None)
        pipeline = None
        if layout.find(rank) is not None:
            parts = (layout, state, groups, self._data_of(layout), self._pacer, ratings, self._job)
            pipeline = Pipeline(*parts, leaving, self._traffic)
        epoch = Epoch(
            number=form.epoch,
            leader=form.leader,
            layout=layout,
            members=form.members,
            groups=groups,
            state=state,
            degraded=degraded,
            fetching=Fetching(background, groups, state, self._traffic),
            pipeline=pipeline,
            ratings=ratings,
            traffic=self._traffic,
            keeping=self._keeping.activities,
            completion=form.completion,
        )
        return Built(epoch, held, transferred, speed)

    def _data_of(self, layout: Layout) -> Corpus | HeldData:
        """What this rank may read."""
        place = layout.find(self._rank)
        if place is None or self._placement is None:
            return self._corpus
        return HeldData(self._corpus, self._job, self._placement, place[0].replica)
