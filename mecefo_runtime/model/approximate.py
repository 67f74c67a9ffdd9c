"""The MeCeFO techniques (arXiv 2510.16415, section 3) on a transformer block: `degrade`, `refresh` and `restore` it.

I.   The attention and its norm run in the forward pass alone: y = x + stop_gradient(attention(norm(x))). Nothing of
     them is stored, their parameters get no gradient, and the residual carries the whole gradient of the input.
II.  Of the feed-forward half only its input is stored; gate and up are computed again in the backward pass (the output
     of the down projection is not needed there). A choice per block: without it gate's and up's outputs are stored too;
     and for what the paper does, the down projection can be computed again as well, at its cost and to no use.
III. The weight gradient G^T x of a linear map y = W x (G and x have a row for each token) is replaced by
     (G^T (x V)) V^T, with V the leading right singular vectors of W: 2 b r (m + n) + 2 r m n operations instead of
     2 b m n. For the down projection the left ones, U ((G U)^T x), cost the same and come nearer to the exact gradient;
     they are the default, the paper's choice is "right". See `low_rank`.

But for the attention that technique I leaves out, the gradient of the block's input is exact.

A projected block (ours, not the paper's) does without technique I: its attention is exact, with its backward pass, and
its feed-forward half as above. Its input's gradient is exact then, and only low-rank weight gradients are approximated.

Shape suffixes: B sequences, T tokens, X = B * T, H hidden, F intermediate, R rank.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecefo_runtime.job.config import ApproximationConfig
from mecefo_runtime.model.block_adapters import BlockAdapter, adapter_of
from mecefo_runtime.model.low_rank import Bases, compute_bases

Recompute = bool | Literal["full"]
"""Whether gate and up are computed again in the backward pass; "full": the down projection, too."""


def degrade(
    block: nn.Module,
    config: ApproximationConfig,
    *,
    recompute: Recompute = False,
    skip_attention: bool = True,
    seed: int = 0,
) -> None:
    """Let `block` run approximated from now on, until `restore`.

    `recompute` is technique II: less is stored, and gate and up are computed twice; no bit of a result depends on it.
    Without `skip_attention`, technique I, the block is projected.
    The bases are computed at once, from the weights as they are now (see `compute_bases`): put the weights in place,
    on their device and of their dtype, before. A block that is degraded already, with this config and seed, keeps its
    bases; with others it begins again.

    Raises:
        TypeError: the block is of a kind that cannot be degraded.
    """
    current = block.forward
    if isinstance(current, _DegradedForward) and current.has(config, seed):
        current.recompute, current.skip_attention = recompute, skip_attention
    else:
        block.__dict__["forward"] = _DegradedForward(block, config, recompute, skip_attention, seed)


def restore(block: nn.Module) -> None:
    """Let `block` run exactly again, with nothing left of the approximation; an exact block is left as it is."""
    if is_degraded(block):
        del block.__dict__["forward"]


def is_degraded(block: nn.Module) -> bool:
    """Whether `block` runs approximated."""
    return isinstance(block.forward, _DegradedForward)


def set_recompute(block: nn.Module, recompute: Recompute) -> None:
    """Choose for a degraded block whether it recomputes (technique II), from its next forward pass on.

    Raises:
        ValueError: the block is not degraded.
    """
    _degraded_forward(block).recompute = recompute


def recomputes(block: nn.Module) -> bool:
    """Whether `block` is degraded and recomputes (technique II), fully or not."""
    return isinstance(block.forward, _DegradedForward) and bool(block.forward.recompute)


def refresh(block: nn.Module) -> None:
    """Compute the bases again from the weights as they are now, starting from the last ones.

    The caller does so every `refresh_steps` steps.

    Raises:
        ValueError: the block is not degraded.
    """
    _degraded_forward(block).refresh(block)


def bases(block: nn.Module) -> Bases:
    """The bases that a degraded block projects on at present.

    Raises:
        ValueError: the block is not degraded.
    """
    return _degraded_forward(block).bases


class _DegradedForward:
    """What a degraded block has as its `forward`: the same arguments, the same result."""

    def __init__(
        self, block: nn.Module, config: ApproximationConfig, recompute: Recompute, skip_attention: bool, seed: int
    ) -> None:
        self.recompute = recompute
        self.skip_attention = skip_attention
        self.bases = compute_bases(block, config, seed)
        self._adapter = adapter_of(block)
        self._config = config
        self._seed = seed

    def has(self, config: ApproximationConfig, seed: int) -> bool:
        return (config, seed) == (self._config, self._seed)

    def refresh(self, block: nn.Module) -> None:
        self.bases = compute_bases(block, self._config, self._seed, self.bases)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        parts = self._adapter
        # Not to keep what the backward pass of attention needs, unless it is wanted.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.skip_attention):
            x_BTH, attended_BTH = parts.attend(*args, **kwargs)
        output_BTH: Tensor = _FeedForwardHalf.apply(  # type: ignore[no-untyped-call]
            x_BTH + attended_BTH,
            parts.ffn_norm.weight,
            parts.gate.weight,
            parts.up.weight,
            parts.down.weight,
            parts,
            self.bases,
            self.recompute,
        )
        return output_BTH


class _FeedForwardHalf(torch.autograd.Function):
    """x + down(silu(gate(norm(x))) * up(norm(x))) with techniques II and III, as one function.

    It stores x (X x H) and, without recomputation, gate's and up's outputs (X x F each); norm(x) is never stored. The
    x V of technique III could be (X x R each for gate and up), but the backward pass of the norm needs x itself, and
    x V costs the same from there: storing it too saves no time that can be measured.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BTH: Tensor,
        norm_H: Tensor,
        gate_FH: Tensor,
        up_FH: Tensor,
        down_HF: Tensor,
        parts: BlockAdapter,
        bases: Bases,
        recompute: Recompute,
    ) -> Tensor:
        x_XH = x_BTH.flatten(0, -2)
        normal_XH = parts.ffn_norm(x_XH)
        gated_XF, raised_XF = F.linear(normal_XH, gate_FH), F.linear(normal_XH, up_FH)
        kept = () if recompute else (gated_XF, raised_XF)
        ctx.save_for_backward(x_XH, norm_H, gate_FH, up_FH, down_HF, *kept)
        # Shared by all microbatches, never written to: no need for autograd to watch over them.
        ctx.parts, ctx.bases, ctx.recomputes_fully = parts, bases, recompute == "full"
        device = x_XH.device.type
        ctx.autocast_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return (x_XH + F.linear(F.silu(gated_XF).mul_(raised_XF), down_HF)).view_as(x_BTH)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BTH: Tensor) -> tuple[Tensor | None, ...]:
        x_XH, norm_H, gate_FH, up_FH, down_HF, *kept = ctx.saved_tensors
        needs_x, needs_norm, needs_gate, needs_up, needs_down = ctx.needs_input_grad[:5]
        parts: BlockAdapter = ctx.parts
        bases: Bases = ctx.bases
        grad_XH = grad_BTH.flatten(0, -2)

        wide = torch.float64 if x_XH.dtype == torch.float64 else torch.float32
        wide_norm_H = norm_H.to(wide)
        length_X1 = torch.linalg.vector_norm(x_XH, dim=-1, keepdim=True, dtype=wide)
        scale_X1 = length_X1.square_().div_(x_XH.shape[-1]).add_(parts.ffn_norm_epsilon).rsqrt_()
        unit_XH = x_XH * scale_X1

        with torch.autocast(x_XH.device.type, ctx.autocast_dtype, enabled=ctx.autocast_dtype is not None):
            if kept:
                gated_XF, raised_XF = kept
            else:
                normal_XH = parts.ffn_norm(x_XH)
                gated_XF, raised_XF = F.linear(normal_XH, gate_FH), F.linear(normal_XH, up_FH)
            # Three buffers of X x F, each written over when its content has been used.
            grad_raised_XF = grad_XH @ down_HF
            grad_gated_XF = grad_raised_XF * raised_XF
            torch.ops.aten.silu_backward.grad_input(grad_gated_XF, gated_XF, grad_input=grad_gated_XF)
            product_XF = F.silu(gated_XF)
            if ctx.recomputes_fully:
                # Nothing reads it: it is computed for the time that it takes whoever computes all of the half again.
                F.linear(product_XF * raised_XF, down_HF).add_(x_XH)
            grad_raised_XF.mul_(product_XF)
            grad_down = None
            if needs_down:
                product_XF.mul_(raised_XF)
                if bases.down_side == "left":
                    grad_down = bases.down @ ((grad_XH @ bases.down).T @ product_XF)
                else:
                    grad_down = _project(grad_XH, product_XF, bases.down)
            grad_normal_XH = torch.addmm(grad_gated_XF @ gate_FH, grad_raised_XF, up_FH)
            # With recomputation too, so that no bit depends on that choice.
            normal_XH = (unit_XH * wide_norm_H).to(x_XH.dtype)
            grad_gate = _project(grad_gated_XF, normal_XH, bases.gate) if needs_gate else None
            grad_up = _project(grad_raised_XF, normal_XH, bases.up) if needs_up else None

        along_XH = grad_normal_XH * unit_XH
        grad_input = None
        if needs_x:
            along_X1 = (along_XH @ wide_norm_H).unsqueeze_(-1).div_(x_XH.shape[-1])
            turned_XH = (grad_normal_XH * wide_norm_H).addcmul_(unit_XH, along_X1, value=-1.0)
            grad_input = torch.addcmul(grad_XH, turned_XH, scale_X1).to(grad_XH.dtype).view_as(grad_BTH)
        grad_norm = along_XH.sum(0).to(norm_H.dtype) if needs_norm else None
        return grad_input, grad_norm, grad_gate, grad_up, grad_down, None, None, None


def _project(grad_XM: Tensor, x_XN: Tensor, basis_NR: Tensor) -> Tensor:
    """The weight gradient grad^T x of y = W x, projected: (grad^T (x V)) V^T, M x N."""
    return (grad_XM.T @ (x_XN @ basis_NR)) @ basis_NR.T


def _degraded_forward(block: nn.Module) -> _DegradedForward:
    if not isinstance(block.forward, _DegradedForward):
        raise ValueError("the block is not degraded")
    return block.forward
