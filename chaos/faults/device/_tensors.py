"""The base of faults on tensors: their place, how they begin in the ranks, and how their effect is verified.

Seen is the effect when the training has used the wrong values (the optimizer took them in, a forward pass computed
with them, somebody downstream received them), or when the job's own judge of steps has found the step rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen
from chaos.faults._inside import InsideFault, ParametersT
from chaos.faults.base import Act, FaultContext
from chaos.language.trigger import PHASES
from mecefo_runtime.system.job_records import StepUnfit
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record

Where = Literal["parameters", "gradients", "activations", "optimizer"]

# What the judge of steps says comes by another way than what the rank says.
JUDGEMENT_SECONDS = 5.0

EFFECTS: Mapping[Where, str] = {
    "parameters": "chaos.in_process.tensors:InjectParameters",
    "gradients": "chaos.in_process.gradients:InjectGradients",
    "activations": "chaos.in_process.activations:InjectActivations",
    "optimizer": "chaos.in_process.tensors:InjectOptimizer",
}
BEFORE_REDUCTION = ("data", "forward", "backward", "reduce", "optimizer")
# The phases of a step in which what is to be affected in this very step still lies ahead.
PHASES_OF: Mapping[Where, tuple[str, ...]] = {
    "parameters": PHASES,
    "gradients": BEFORE_REDUCTION,
    "activations": ("data", "forward"),
    "optimizer": PHASES,
}


TENSOR_DESCRIPTION = "a name or pattern, layer.3.*.weight; of activations, a module's; default: drawn by the seed"
LAYER_DESCRIPTION = "only tensors of this layer"


class TensorParameters(BaseModel):
    """Where a fault on tensors affects: what is left out is drawn from the experiment's seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: Where = Field(default="gradients", description="which of the rank's tensors; activations: modules' outputs")
    tensor: str | None = Field(default=None, min_length=1, max_length=200, description=TENSOR_DESCRIPTION)
    layer: int | None = Field(default=None, ge=0, description=LAYER_DESCRIPTION)


class ElementParameters(TensorParameters):
    """Which elements of the tensor."""

    index: int | None = Field(
        default=None, ge=0, description="the first element, counted row by row; default: drawn by the seed"
    )
    elements: int | None = Field(default=None, ge=1, le=1_000_000, description="number of elements; default: 1")


class TensorFault(InsideFault[ParametersT]):
    """Begins an effect in each rank of the target, and judges what the ranks and the job's own judge say of it."""

    changes_values: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "nothing to undo: the wrong values stay unless the job repairs them"
    has_undo: ClassVar[bool] = False

    def __init__(self, parameters: ParametersT) -> None:
        super().__init__(parameters)
        self._rejected: list[StepUnfit] = []
        self._listening: asyncio.Task[Record] | None = None

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Begin the effect in each rank, and start listening before it can have consequences."""
        self._listening = asyncio.create_task(context.watch.wait_for(self._note, None))
        await super().apply(act, context)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for each rank's report, but not where it is known already that nothing changed."""
        for rank, (_, begun) in self._begun.items():
            _refuse_unchanged(rank, begun)
        return await super().verify(act, context, timeout_seconds)

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Stop listening, and remove the hooks from the ranks."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        await super().lift(act, context)

    # ---- what came of it ----

    def _note(self, record: Record) -> bool:
        """Keep what the judge of steps says; never what is waited for, so that no event between two waits is lost."""
        if isinstance(record, StepUnfit):
            self._rejected.append(record)
        return False

    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        """The evidence of one rank.

        Raises:
            EffectNotSeen: nothing used the wrong values, and nobody refused them.
        """
        _refuse_unchanged(rank, told)
        outcome = str(told["outcome"])
        where = f"rank {rank}: {affected_text(told)}"
        match outcome:
            case "consumed" | "masked":
                if told.get("is_changed") is not True:
                    raise EffectNotSeen(Reason("change_not_reported", where=where))
                return {"summary": f"{where}; {use_text(told)}", **told}
            case "left" | "unchanged" | "restored":
                found = await self._judgement(int(told.get("step") or 0), is_healed=outcome == "restored")
                if found is None:
                    raise EffectNotSeen(Reason("step_not_checked", where=where, outcome=_NOT_USED[outcome]))
                verdict = f"step {found.step} was rejected: {found.verdict} ({found.reason})"
                judgement = {
                    "verdict": found.verdict,
                    "suspects": list(found.suspects),
                    "reason": found.reason,
                    "step": found.step,
                }
                return {"summary": f"{where}; {verdict}", **told, "judgement": judgement}
            case _:
                why = "whether it was used is not known" if outcome == "failed" and told.get("struck") else outcome
                raise EffectNotSeen(
                    Reason("values_not_used", where=where, outcome=_NOT_USED.get(why, why), because=_because(told))
                )

    async def _judgement(self, step: int, *, is_healed: bool) -> StepUnfit | None:
        """What the job's judge of steps said about `step` (or, of a state that was healed, about any step)."""
        for _ in range(int(JUDGEMENT_SECONDS / 0.05)):
            for found in self._rejected:
                if found.step == step or (is_healed and found.verdict == "heal"):
                    return found
            await asyncio.sleep(0.05)
        return None


_NOT_USED: Mapping[str, str] = {
    "left": "the step was aborted before the optimizer used it",
    "unchanged": "the optimizer left the parameter as it was",
    "restored": "it was overwritten before anything was observed to read it",
    "otherwise": "the optimizer's step does not follow from the corrupted value",
    "unused": "no later computation used it",
    "failed": "it could not be done",
}


def _refuse_unchanged(rank: int, told: Mapping[str, Any]) -> None:
    if told.get("is_changed") is False:
        raise EffectNotSeen(Reason("values_unchanged", rank=rank, affected=affected_text(told)))


def _because(told: Mapping[str, Any]) -> str:
    return f": {str(told['reason']).rstrip('.')}" if told.get("reason") else ""


def affected_text(told: Mapping[str, Any]) -> str:
    """Which element of which tensor became what, of the first element."""
    affected = told.get("struck")
    if not affected:
        return "no tensor was changed"
    first = affected["elements"][0]
    if "kept_step" in told:
        return (
            f"the gradients of step {told['kept_step']} again in step {told['step']}: {told['num_tensors']} tensors, "
            f"from which the fresh ones differ by {told['relative_change']:.3g} times their norm; "
            f"{affected['tensor']}{first['place']}: {_text(first['before'])} -> {_text(first['after'])}"
        )
    bit = f", bit {first['bit']}" if "bit" in first else ""
    more = f" and {affected['count'] - 1} more" if affected["count"] > 1 else ""
    before, after = _texts(first["before"], first["after"])
    return f"{affected['tensor']}{first['place']}{bit}: {before} -> {after}{more}"


def use_text(told: Mapping[str, Any]) -> str:
    """Who used it, with figures."""
    if "receiver" in told:
        return str(told["receiver"])
    if "update" in told:
        update = told["update"]
        actual, clean = _texts(update["parameter_actual"], update["parameter_clean"])
        if told["outcome"] == "masked":
            return f"the optimizer used it, and the parameter did not change in any bit: {actual}"
        return f"the optimizer used it: the parameter became {actual} instead of {clean}"
    if "output" in told:
        output = told["output"]
        return (
            f"the next forward pass computed with it: {output['num_changed']} of {output['num_elements']} elements of "
            f"the module's output differ, by up to {_text(output['largest_change'])}"
        )
    return f"it was there in {told['num_forwards']} forward passes and changed none of their outputs"


def _texts(one: float | str, other: float | str) -> tuple[str, str]:
    """Two numbers, with as many digits as it takes to tell them apart."""
    for digits in range(6, 18):
        texts = _text(one, digits), _text(other, digits)
        if texts[0] != texts[1]:
            break
    return texts if texts[0] != texts[1] else (_text(one), _text(other))


def _text(number: float | str, digits: int = 6) -> str:
    return number if isinstance(number, str) else f"{number:.{digits}g}"
