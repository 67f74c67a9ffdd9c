"""Who holds what right now, as far as the events tell, and so: whom a run can lose and still go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import from_json
from mecefo_runtime.system.process import ProcessId


class Knowledge:
    """The state of a job as its events tell it, a moment late: so it errs on the side of those that are lost.

    A rank that was affected counts as lost until another process of it, or the same one after it woke up, is in an
    epoch that began later.
    """

    def __init__(self) -> None:
        self.step = 0
        self.processes: dict[int, ProcessId] = {}
        self._started: dict[int, float] = {}
        self._lost_since: dict[int, float] = {}
        self._entered: Layout | None = None
        self._formed: Layout | None = None
        self._formed_seconds = 0.0
        self.members: frozenset[int] = frozenset()

    def feed(self, event: Event) -> None:
        """Learn from an event."""
        match event.kind:
            case "step_committed":
                self.step = max(self.step, event.step or 0)
            case "process_started" if event.source == "supervisor":
                rank = int(event.fields["started_rank"])
                process = ProcessId(int(event.fields["started_pid"]), int(event.fields["start_ticks"]))
                if rank in self.processes:
                    # A fresh process has nothing until it has been let in.
                    self._lost_since[rank] = event.monotonic_seconds
                self.processes[rank] = process
                self._started[rank] = event.monotonic_seconds
            case "layout":
                self._formed = from_json(Layout, event.fields["layout"], lenient=True)
                self._formed_seconds = event.monotonic_seconds
            case "regrouped":
                self._entered, self.members = self._formed, frozenset(event.fields["members"])
                for rank in self.members & set(self._lost_since):
                    if self._lost_since[rank] < self._formed_seconds:
                        del self._lost_since[rank]

    def inject(self, ranks: Iterable[int], now_seconds: float) -> None:
        """`ranks` are being lost."""
        for rank in ranks:
            self._lost_since[rank] = now_seconds

    def living(self) -> tuple[int, ...]:
        """The ranks that are in, and were not affected since."""
        return tuple(sorted(rank for rank in self.members if rank not in self._lost_since))

    def holders(self, unit: str) -> tuple[int, ...]:
        """The living holders of `unit` in the epoch that was entered last."""
        living = self.living()
        held = self._entered.holders() if self._entered else {}
        return tuple(rank for rank in held.get(unit, ()) if rank in living)

    def units(self) -> tuple[str, ...]:
        """All units of the model."""
        return tuple(self._entered.holders()) if self._entered else ()

    def can_lose(self, ranks: Collection[int]) -> bool:
        """Whether training goes on without `ranks`: in the old epoch, and in the new one where one is being formed."""
        left = set(self.living()) - set(ranks)
        layouts = [layout for layout in (self._entered, self._formed) if layout is not None]
        return bool(layouts) and all(left & set(holders) for layout in layouts for holders in layout.holders().values())
