"""Which ranks a job has, what each of them holds, and whether there is a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mecefo_runtime.job.layout import Layout

STATES = ("starting", "alive", "lost")
_MAX_RANKS = 4096
_MAX_EPOCHS = 256


class Members:
    """The ranks of a job by state, and their layers.

    `layers` and `degraded` count by rank; they are empty until there is a layout, and stay so in an external job.
    """

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.layers: dict[int, int] = {}
        self.degraded: dict[int, int] = {}
        self.epoch: int | None = None
        self.is_coordinator_up: bool | None = None
        self._sizes: dict[int, int] = {}

    def start(self, num_ranks: int) -> None:
        """The job starts."""
        self.states = dict.fromkeys(range(min(num_ranks, _MAX_RANKS)), "starting")

    def appear(self, rank: int, *, is_member: bool) -> None:
        """A rank said that it is there; one that was lost is not back before it is a member again."""
        if is_member or self.states.get(rank, "starting") == "starting":
            self._mark([rank], "alive")

    def lose(self, ranks: Iterable[int]) -> None:
        """They are gone."""
        self._mark(ranks, "lost")
        for rank in ranks:
            if rank in self.layers:
                self.layers[rank] = self.degraded[rank] = 0

    def join(self, ranks: Iterable[int]) -> None:
        """They are members."""
        self._mark(ranks, "alive")

    def lay_out(self, fields: Mapping[str, Any]) -> None:
        """A membership is formed, with a layout."""
        self._note_size(fields)
        self.epoch = int(fields["epoch"])
        if not fields.get("layout"):
            return
        layout = Layout.from_dict(fields["layout"])
        self.layers = dict.fromkeys(self.states, 0)
        self.degraded = dict.fromkeys(self.states, 0)
        for replica in layout.replicas:
            for span in replica.spans:
                if span.rank in self.states:
                    self.layers[span.rank] = len(span.layers)
                    self.degraded[span.rank] = len(span.degraded)

    def regroup(self, fields: Mapping[str, Any]) -> None:
        """The membership is at work; whoever is not in it is lost."""
        self._note_size(fields)
        members = set(fields.get("members", ()))
        self._mark(members, "alive")
        self._mark([rank for rank, state in self.states.items() if state == "alive" and rank not in members], "lost")

    def is_short(self, epoch: int) -> bool:
        """Whether ranks were missing in `epoch`."""
        return self._sizes.get(epoch, len(self.states)) < len(self.states)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of ranks in each state."""
        values = list(self.states.values())
        return {state: values.count(state) for state in STATES}

    def _note_size(self, fields: Mapping[str, Any]) -> None:
        if "epoch" in fields and "members" in fields:
            self._sizes[int(fields["epoch"])] = len(fields["members"])
            if len(self._sizes) > _MAX_EPOCHS:
                del self._sizes[next(iter(self._sizes))]

    def _mark(self, ranks: Iterable[int], state: str) -> None:
        for rank in ranks:
            if rank in self.states or len(self.states) < _MAX_RANKS:
                self.states[int(rank)] = state
