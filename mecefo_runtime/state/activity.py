"""What uses a rank's state between two optimizer steps, while it does not change: one list, one deadline."""

from __future__ import annotations


class StateActivity:
    """Something that reads or receives state while a step computes. It does nothing unless a method is overridden."""

    def begin(self, step: int) -> None:
        """`step` begins, with the state after the one before. One that is computed again begins again."""

    def advance(self) -> None:
        """A compute segment is over: do a little, in much less time than a segment takes."""

    def finish(self) -> None:
        """The optimizer is next: finish using the state that it will change.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a peer that this needs is lost.
        """

    def leave(self) -> None:
        """The epoch is over: finish using its state, as far as that needs no peer."""
