"""Injections into gradients, between backward pass and reduction; what the optimizer took in is the proof."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chaos.in_process.base import InProcessFaultRefused, Subject
from chaos.in_process.injection import TensorInjection
from chaos.in_process.shadow import ReplayedOptimizer
from chaos.in_process.values import describe, is_equal, most_different, read, shown

# Where a step still has the gradients before it. A job that does not say when it reduces has them at its optimizer.
PHASES = ("reduce", "optimizer")
# A peer's part of an element is taken to be at most this often as large as the largest that was seen of others.
_PEERS_SLACK = 4.0
_ROUNDING_ULPS = 8
_DROWNED_RATIO = 0.01


class GradientWatch:
    """Follows an affected gradient through reduction and optimizer.

    `own` is all of the tensor as it was before, `indices` are the elements to look at, of which `before` and `after`
    are told apart.
    """

    def __init__(self, name: str, own: Tensor, indices: Tensor, gradient: Tensor, step: int, phase: str) -> None:
        self.name, self.step = name, step
        self._own = own
        self._usual = float(own.double().square().mean().sqrt())
        self._affected = gradient.clone()
        self.indices = indices
        self._is_reduced = phase == "reduce"
        self._reduced: Tensor | None = None
        self._carried: bool | None = None
        self._shadow: ReplayedOptimizer | None = None

    @property
    def has_optimizer(self) -> bool:
        """Whether somebody was seen to take it in, or nobody has come to that yet."""
        return self._reduced is None or self._shadow is not None

    def before_optimizer(self, gradient: Tensor, shadow: ReplayedOptimizer | None) -> None:
        """The gradient is reduced, and the optimizer comes next."""
        self._reduced = read(gradient, self.indices)
        self._shadow = shadow
        if self._is_reduced:
            self._carried = is_carried(self._own, self._affected, gradient, self.indices)

    def after_optimizer(self, gradient: Tensor) -> dict[str, Any] | None:
        """What the step made of it; None when there was no step to look at, or it was left out."""
        if self._reduced is None or self._shadow is None:
            return None
        taken_in = read(gradient, self.indices)
        own, affected = read(self._own, self.indices), read(self._affected, self.indices)
        clean = would_be(own, affected, self._reduced, taken_in, self._usual)
        consumption, shows = self._shadow.judge(taken_in, clean)
        was_replaced = bool((taken_in.isfinite() & ~self._reduced.isfinite()).any())
        if self._carried is False or was_replaced:
            consumption = "otherwise"
        most = int(most_different(own, affected)[0])
        return {
            "consumption": consumption,
            "carried_by_reduction": self._carried,
            "gradient": {
                "own": shown(float(own[most])),
                "struck": shown(float(affected[most])),
                "reduced": shown(float(self._reduced[most])),
                "taken_in": shown(float(taken_in[most])),
            },
            **shows,
        }


def is_carried(own: Tensor, affected: Tensor, reduced: Tensor, indices: Tensor) -> bool | None:
    """Whether a reduced gradient contains the affected one, judged by what the peers seem to have added.

    For elements that were not affected, `reduced - own` is the peers' part. None: the change is too small to be told
    from the peers' parts.
    """
    own, affected, reduced = own.double().reshape(-1), affected.double().reshape(-1), reduced.double().reshape(-1)
    is_same = own == affected
    if not bool(is_same.any()):
        # All is affected: what is added to the affected tensor must be as small as what is added elsewhere, unknown
        # here.
        return None
    usual = _PEERS_SLACK * float((reduced - own)[is_same].abs().nan_to_num(0.0, 0.0, 0.0).max())
    most = indices[most_different(own[indices], affected[indices])[0]]
    before, after, sum_ = (float(values[most]) for values in (own, affected, reduced))
    rounding = _ROUNDING_ULPS * torch.finfo(torch.float32).eps
    if not torch.isfinite(affected[most]):
        return not bool(torch.isfinite(reduced[most]))
    is_with = abs(sum_ - after) <= usual + rounding * abs(after)
    is_without = abs(sum_ - before) <= usual + rounding * abs(before)
    return None if is_with == is_without else is_with


def would_be(own: Tensor, affected: Tensor, reduced: Tensor, taken_in: Tensor, usual: float) -> Tensor:
    """What the optimizer would have taken in without the fault, with the same clipping.

    Where the change is so large that rounding has lost what the peers added, their part is left out. `usual` is the
    usual size of gradients.
    """
    dtype = reduced.dtype
    own, affected, reduced, taken_in = (values.double() for values in (own, affected, reduced, taken_in))
    ratio = (taken_in / reduced).nan_to_num(1.0, 1.0, 1.0)
    ratio = torch.where(reduced == 0, torch.ones_like(ratio), ratio)
    without = reduced - (affected - own)
    error = torch.finfo(dtype).eps * (affected - own).abs()
    is_drowned = ~torch.isfinite(without) | (error > _DROWNED_RATIO * usual)
    return torch.where(is_drowned, own, without) * ratio


class _GradientInjection(TensorInjection):
    """The base of both effects on gradients: follows the affected gradient."""

    _watch: GradientWatch | None = None
    _place = (0, "")

    def _before_step(self) -> None:
        """Its optimizer is about to step."""
        raise NotImplementedError

    def _after_step(self) -> None:
        """It has stepped."""
        if self._watch is not None and not self._is_told:
            self._finish(self._watch, "commit")

    def _gradients(self) -> dict[str, Tensor]:
        return dict(self._tensors("gradients"))

    def _follow(self, step: int, phase: str) -> None:
        watch = self._watch
        if watch is None or self._is_told:
            return
        if step == watch.step and phase in PHASES:
            gradient = self._trained.tensors("gradients")[watch.name]
            if phase == "optimizer":
                watch.before_optimizer(gradient, self._shadow(watch.name, watch.indices))
            return
        if step == watch.step and phase == "commit":
            self._finish(watch, phase)
        else:
            self._tell("left", next_phase=phase, next_step=step)

    def _finish(self, watch: GradientWatch, phase: str) -> None:
        if phase == "commit" and not watch.has_optimizer:
            raise InProcessFaultRefused(f"no optimizer is known that takes in the gradient of {watch.name}")
        made = watch.after_optimizer(self._trained.tensors("gradients")[watch.name])
        if made is None:
            self._tell("left", next_phase=phase, next_step=self._place[0])
        else:
            self._tell(made.pop("consumption"), **made)


class InjectGradients(_GradientInjection):
    """Changes this rank's gradient before it is reduced, at the next such moment."""

    _name = ""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Choose the tensor; corrupt it at once if this is the moment."""
        gradients = self._gradients()
        if not gradients and phase in PHASES:
            raise InProcessFaultRefused("there are no gradients")
        self.announced(step, phase)
        return {"tensor": self._name or None, "step": step, "phase": phase}

    def exposed(self, subject: Subject) -> None:
        """Whatever was under way is left."""
        super().exposed(subject)
        if self._watch is not None:
            self._follow(0, "regroup")

    def _announced(self, step: int, phase: str) -> None:
        self._place = step, phase
        if self._owner_hooks:
            return
        if phase in PHASES and self._watch is None:
            if self._is_told_by_owners():
                self._name = self._selector.tensor_of(self._gradients(), "gradients", self._rng)
                if self._follow_owner(self._name, self._before_step, self._after_step):
                    return
            self._inject_into(step, phase)
        elif self._is_sticky and self._watch is not None and phase == self._told["phase"]:
            gradient = self._trained.tensors("gradients").get(self._name)
            if gradient is not None and self._mark_first.inject_again(gradient):
                self._num_injections += 1
        self._follow(step, phase)

    def _before_step(self) -> None:
        step, gradients = self._place[0], self._gradients()
        if self._name not in gradients:
            return
        if self._watch is None:
            self._inject_into(step, "optimizer")
            self._follow(step, "optimizer")
        elif self._is_sticky and self._mark_first.inject_again(gradients[self._name]):
            self._num_injections += 1

    def _inject_into(self, step: int, phase: str) -> None:
        gradients = self._gradients()
        self._name = self._name or self._selector.tensor_of(gradients, "gradients", self._rng)
        gradient = gradients[self._name]
        own = gradient.clone()
        mark = self._mark_first = self._mark(self._name, gradient)
        self._told = {
            "struck": mark.description,
            "is_changed": mark.is_changed,
            "step": step,
            "phase": phase,
        }
        self._watch = GradientWatch(self._name, own, mark.indices[mark.most_changed()], gradient, step, phase)


class KeepGradients(_GradientInjection):
    """Keeps this rank's gradients of one step, and has it use them again in the next one."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Keep them as soon as they are whole."""
        self._kept: dict[str, Tensor] = {}
        self._kept_step = 0
        self.announced(step, phase)
        return {"step": step, "phase": phase}

    def _announced(self, step: int, phase: str) -> None:
        self._place = step, phase
        if self._owner_hooks:
            return
        if self._watch is None and phase in PHASES:
            if self._is_told_by_owners():
                self._follow_owner(self._choose_owner(), self._before_step, self._after_step)
                return
            if not self._kept_step or step == self._kept_step:
                # A step that is computed again counts as it was computed last.
                if phase == PHASES[0] or not self._kept:
                    gradients = self._gradients()
                    names = self._selector.names(gradients, "gradients")
                    self._kept = {name: gradients[name].clone() for name in names}
                    self._kept_step = step
            else:
                self._use_again(step, phase)
        self._follow(step, phase)

    def _choose_owner(self) -> str:
        """A gradient of the optimizer that has most of those that fit: each has its own moment."""
        gradients = self._gradients()
        owned: dict[int, list[str]] = {}
        for name in self._selector.names(gradients, "gradients"):
            owned.setdefault(id(self._trained.updater(name)[0]), []).append(name)
        self._names = max(owned.values(), key=lambda names: sum(gradients[name].numel() for name in names))
        return self._names[0]

    def _before_step(self) -> None:
        step, gradients = self._place[0], self._gradients()
        if self._watch is not None or any(name not in gradients for name in self._names):
            return
        if not self._kept:
            self._kept = {name: gradients[name].clone() for name in self._names}
            self._kept_step = step
        else:
            self._use_again(step, "optimizer")
            self._follow(step, "optimizer")

    def _use_again(self, step: int, phase: str) -> None:
        gradients = self._gradients()
        fresh = {name: gradients[name].clone() for name in self._kept if name in gradients}
        gaps = {name: _largest_gap(own, self._kept[name]) for name, own in fresh.items()}
        if not gaps:
            raise InProcessFaultRefused("this rank has other layers by now")
        for name in fresh:
            gradients[name].data.copy_(self._kept[name])
        self._num_injections += 1
        name = max(gaps, key=lambda name: gaps[name])
        gradient, own = gradients[name], fresh[name]
        indices = most_different(own.reshape(-1), gradient.reshape(-1))
        before, after = read(own, indices), read(gradient, indices)
        self._told = {
            "struck": describe(name, gradient, indices, before, after, ()),
            "is_changed": not all(bool(is_equal(own, gradients[name]).all()) for name, own in fresh.items()),
            "is_equal_to_kept": all(torch.equal(gradients[name], self._kept[name]) for name in fresh),
            "relative_change": _distance(fresh, self._kept),
            "num_tensors": len(fresh),
            "kept_step": self._kept_step,
            "step": step,
            "phase": phase,
        }
        self._watch = GradientWatch(name, own, indices, gradient, step, phase)
        self._kept = {}


def _largest_gap(one: Tensor, other: Tensor) -> float:
    """By how much they differ at most; of what is no number in one of them alone, infinitely much."""
    gaps = (one - other).abs().nan_to_num(torch.inf, torch.inf)
    return float(gaps.masked_fill(is_equal(one, other), 0.0).max())


def _distance(fresh: dict[str, Tensor], kept: dict[str, Tensor]) -> float | str:
    """|fresh - kept| / |fresh| over all tensors."""
    gap = sum(float((own - kept[name]).double().square().sum()) for name, own in fresh.items())
    size = sum(float(own.double().square().sum()) for own in fresh.values())
    return shown((gap / size) ** 0.5) if size else "inf"
