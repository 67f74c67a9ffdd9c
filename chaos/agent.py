"""What training processes call: `install`, the runtime's hook, and `step`, for your own script."""

from __future__ import annotations

import os

from chaos.in_process.agent import Agent
from chaos.in_process.protocol import AGENT_VARIABLE
from chaos.in_process.snapshot_agent import SnapshotAgent


def install(*, rank: int | None, node: int, attempt: int) -> Agent:
    """The runtime's hook (see `mecefo_runtime.training.hooks`): connects to the injector named by the environment."""
    kind = Agent if rank is not None else SnapshotAgent
    return kind(os.environ[AGENT_VARIABLE], rank=rank, node=node, attempt=attempt)


def step(
    loss: float | None = None, samples: int | None = None, tokens: int | None = None, *, number: int | None = None
) -> None:
    """Report the end of a training step: for scripts in which an optimizer's step is not one.

    Import this module before the first optimizer is made, and call this in every rank at the end of every step: nothing
    is counted by itself then. `number` is the script's own count of steps (from 1), where it does not begin at 1; the
    figures are those of the step, of all ranks together, where the script knows them. Outside of a run it does nothing.
    """
    if not (os.environ.get(AGENT_VARIABLE) and os.environ.get("CHAOS_RUN")):
        return
    # Only here: ranks of our own runtime have no use for it, and without torch there is nothing to follow.
    from chaos.external.start import step_ended

    figures: dict[str, float | int] = {}
    if loss is not None:
        # A tensor will do, too; of one that is still to be differentiated torch would warn.
        figures["loss"] = float(getattr(loss, "detach", lambda: loss)())
    counts = {"samples": samples, "tokens": tokens}
    figures.update({name: int(count) for name, count in counts.items() if count is not None})
    step_ended(figures, number)
