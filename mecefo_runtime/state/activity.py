"""What uses a rank's state between two optimizer steps, while it does not change: one list, one deadline."""

from __future__ import annotations


class StateActivity:
    """Something that reads or receives state while a step computes. It does nothing unless a method is overridden."""

    def begin(self, step: int) -> None:
        """`step` begins, with the state after the one before. One that is computed again begins again."""

    def advance(self) -> None:
        """A compute segment is over: do a little, in much less time than a segment takes."""

    def finish(self) -> None:
        """The optimizer is next: be through with the state that it is going to change.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: that takes a peer, and it is gone.
        """

    def leave(self) -> None:
        """The epoch is over: be through with its state, as far as that takes no peer."""
