"""The ranks at the ends of links: there until they are `gone`."""

from dataclasses import dataclass

from chaos.faults.base import OwnedProcess


@dataclass(frozen=True)
class _Process:
    """What faults of links ask of a process."""

    pid: int
    start_ticks: int
    gone: set[int]

    def is_running(self):
        return self.pid - 1000 not in self.gone


class Ranks:
    """Two ranks on each node. What is `unknown` never started."""

    def __init__(self, gone=(), unknown=()):
        self.gone = set(gone)
        self.unknown = set(unknown)

    def rank_processes(self, ranks):
        return tuple(
            OwnedProcess("rank", _Process(1000 + rank, 1, self.gone), rank=rank, node=rank // 2)
            for rank in ranks
            if rank not in self.unknown
        )
