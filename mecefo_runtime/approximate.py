"""The MeCeFO techniques (arXiv 2510.16415, section 4) on a transformer block: `degrade`, `refresh` and `restore` it.

I.   The attention and its norm run in the forward pass alone: y = x + stop_gradient(attention(norm(x))). Nothing of
     them is stored, their parameters get no gradient, and the residual carries the whole gradient of the input.
II.  Of the feed-forward half only its input is stored; gate and up are computed again in the backward pass (the output
     of the down projection is not needed there). Optional: without it gate's and up's outputs are stored too.
III. The weight gradient G^T x of a linear map y = W x (G and x have a row for each token) is replaced by
     (G^T (x V)) V^T, with V the leading right singular vectors of W: 2 b r (m + n) + 2 r m n operations instead of
     2 b m n. For the down projection the left ones, U ((G U)^T x), cost the same and come nearer to the exact gradient;
     they are the default, the paper's choice is "right".

But for the attention that technique I leaves out, the gradient of the block's input is exact.

Shape suffixes: B sequences, T tokens, X = B * T, H hidden, F intermediate, R rank; M x N is any weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecefo_runtime.config import ApproximationConfig
from mecefo_runtime.model import Block

# Each iteration multiplies by W^T W. Once warm, one per refresh follows the weights, which hardly turn in tau steps.
FIRST_ITERATIONS = 4
WARM_ITERATIONS = 1


@dataclass(frozen=True, slots=True)
class Bases:
    """Orthonormal columns that span what technique III keeps of each weight gradient.

    `gate` and `up` are H x R: right singular vectors. `down` is H x R when it holds left ones, F x R when right ones.
    """

    gate: Tensor
    up: Tensor
    down: Tensor


def degrade(block: nn.Module, config: ApproximationConfig, *, seed: int = 0) -> None:
    """Let `block` run approximated from now on, until `restore`. A block that is degraded already begins anew.

    The bases are computed at once, from the weights as they are now and from random starts drawn from `seed`: put the
    weights in place before. The rank is capped at the smaller side of the weights.

    Raises:
        TypeError: the block is of a kind that cannot be degraded.
    """
    block.__dict__["forward"] = _DegradedForward(_anatomy(block), config, seed)


def restore(block: nn.Module) -> None:
    """Let `block` run exactly again, with nothing left of the approximation; an exact block is left as it is."""
    if is_degraded(block):
        del block.__dict__["forward"]


def is_degraded(block: nn.Module) -> bool:
    """Whether `block` runs approximated."""
    return isinstance(block.forward, _DegradedForward)


def refresh(block: nn.Module) -> None:
    """Compute the bases anew from the weights as they are now, starting from the last ones.

    The caller does so every `refresh_steps` steps.

    Raises:
        ValueError: the block is not degraded.
    """
    _degraded_forward(block).refresh()


def bases(block: nn.Module) -> Bases:
    """The bases that a degraded block projects on at present.

    Raises:
        ValueError: the block is not degraded.
    """
    return _degraded_forward(block).bases


def leading_right_singular_vectors(weight_MN: Tensor, start_NR: Tensor, num_iterations: int) -> Tensor:
    """The subspace of the R leading right singular vectors, N x R with orthonormal columns, by subspace iteration.

    `start_NR` is random, or the answer for a similar matrix (Halko, Martinsson and Tropp 2011, arXiv 0909.4061,
    algorithm 4.4). Computed in fp32 at least; the result has the dtype of `weight_MN`.
    """
    wide_MN = weight_MN if weight_MN.dtype == torch.float64 else weight_MN.float()
    basis_NR = start_NR.to(wide_MN)
    for _ in range(num_iterations):
        basis_NR = torch.linalg.qr(wide_MN.T @ (wide_MN @ basis_NR)).Q
    return basis_NR.to(weight_MN.dtype)


@dataclass(frozen=True, slots=True)
class _Anatomy:
    """The parts of a pre-norm block with RMSNorm and SwiGLU."""

    attention_norm: nn.Module
    attention: nn.Module
    ffn_norm: nn.RMSNorm
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


def _anatomy(block: nn.Module) -> _Anatomy:
    """The one place that knows kinds of blocks: where each keeps its parts."""
    if isinstance(block, Block):
        ffn = block.ffn
        return _Anatomy(block.attention_norm, block.attention, block.ffn_norm, ffn.gate, ffn.up, ffn.down)
    raise TypeError(f"cannot degrade a {type(block).__name__}: only {Block.__module__}.{Block.__name__} is known")


class _DegradedForward:
    """What a degraded block has as its `forward`."""

    def __init__(self, anatomy: _Anatomy, config: ApproximationConfig, seed: int) -> None:
        self._anatomy = anatomy
        self._config = config
        generator = torch.Generator().manual_seed(seed)

        def basis(weight_MN: Tensor) -> Tensor:
            rank = min(config.rank, *weight_MN.shape)
            start_NR = torch.randn(weight_MN.shape[1], rank, generator=generator)
            return leading_right_singular_vectors(weight_MN, start_NR.to(weight_MN.device), FIRST_ITERATIONS)

        gate_FH, up_FH, down = self._weights()
        self.bases = Bases(basis(gate_FH), basis(up_FH), basis(down))

    def refresh(self) -> None:
        gate_FH, up_FH, down = self._weights()
        self.bases = Bases(
            leading_right_singular_vectors(gate_FH, self.bases.gate, WARM_ITERATIONS),
            leading_right_singular_vectors(up_FH, self.bases.up, WARM_ITERATIONS),
            leading_right_singular_vectors(down, self.bases.down, WARM_ITERATIONS),
        )

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three weights without autograd, turned so that the wanted singular vectors are the right ones."""
        parts = self._anatomy
        down_HF = parts.down.weight.detach()
        is_left = self._config.down_projection == "left"
        return parts.gate.weight.detach(), parts.up.weight.detach(), down_HF.T if is_left else down_HF

    def __call__(self, x_BTH: Tensor) -> Tensor:
        parts = self._anatomy
        with torch.no_grad():
            attended_BTH = parts.attention(parts.attention_norm(x_BTH))
        output_BTH: Tensor = _FeedForwardHalf.apply(  # type: ignore[no-untyped-call]
            x_BTH + attended_BTH,
            parts.ffn_norm.weight,
            parts.gate.weight,
            parts.up.weight,
            parts.down.weight,
            self.bases,
            parts.ffn_norm.eps,
            self._config,
        )
        return output_BTH


class _FeedForwardHalf(torch.autograd.Function):
    """x + down(silu(gate(norm(x))) * up(norm(x))) with techniques II and III, as one function.

    Norm and residual are part of it because then the input x is all there is to store: norm(x) follows from it by two
    elementwise operations, so that keeping norm(x), or its product with V, would save no time worth the memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BTH: Tensor,
        norm_H: Tensor,
        gate_FH: Tensor,
        up_FH: Tensor,
        down_HF: Tensor,
        bases: Bases,
        epsilon: float,
        config: ApproximationConfig,
    ) -> Tensor:
        x_XH = x_BTH.flatten(0, -2)
        normal_XH = F.rms_norm(x_XH, norm_H.shape, norm_H, epsilon)
        gated_XF, raised_XF = F.linear(normal_XH, gate_FH), F.linear(normal_XH, up_FH)
        kept = () if config.recompute_ffn else (gated_XF, raised_XF)
        ctx.save_for_backward(x_XH, norm_H, gate_FH, up_FH, down_HF, *kept)
        # Shared by all microbatches, never written to: no need for autograd to watch over them.
        ctx.bases, ctx.epsilon, ctx.is_left = bases, epsilon, config.down_projection == "left"
        return torch.addmm(x_XH, F.silu(gated_XF).mul_(raised_XF), down_HF.T).view_as(x_BTH)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BTH: Tensor) -> tuple[Tensor | None, ...]:
        x_XH, norm_H, gate_FH, up_FH, down_HF, *kept = ctx.saved_tensors
        needs_x, needs_norm, needs_gate, needs_up, needs_down = ctx.needs_input_grad[:5]
        bases: Bases = ctx.bases
        grad_XH = grad_BTH.flatten(0, -2)

        wide_XH = x_XH if x_XH.dtype == torch.float64 else x_XH.float()
        scale_X1 = wide_XH.square().mean(-1, keepdim=True).add_(ctx.epsilon).rsqrt_()
        unit_XH = wide_XH * scale_X1
        normal_XH = (unit_XH * norm_H).to(x_XH.dtype)
        gated_XF, raised_XF = kept or (F.linear(normal_XH, gate_FH), F.linear(normal_XH, up_FH))

        grad_product_XF = grad_XH @ down_HF
        active_XF = F.silu(gated_XF)
        grad_gated_XF = torch.ops.aten.silu_backward(grad_product_XF * raised_XF, gated_XF)
        grad_down = None
        if needs_down:
            product_XF = active_XF * raised_XF
            if ctx.is_left:
                grad_down = bases.down @ ((grad_XH @ bases.down).T @ product_XF)
            else:
                grad_down = _project(grad_XH, product_XF, bases.down)
        grad_raised_XF = grad_product_XF.mul_(active_XF)
        grad_normal_XH = torch.addmm(grad_gated_XF @ gate_FH, grad_raised_XF, up_FH)

        grad_input = None
        grad_normal_wide_XH = grad_normal_XH.to(wide_XH.dtype)
        if needs_x:
            weighted_XH = grad_normal_wide_XH * norm_H
            along_X1 = (weighted_XH * unit_XH).mean(-1, keepdim=True)
            grad_wide_XH = torch.addcmul(weighted_XH, unit_XH, along_X1, value=-1.0).mul_(scale_X1)
            grad_input = grad_wide_XH.to(grad_XH.dtype).add_(grad_XH).view_as(grad_BTH)
        return (
            grad_input,
            (grad_normal_wide_XH * unit_XH).sum(0).to(norm_H.dtype) if needs_norm else None,
            _project(grad_gated_XF, normal_XH, bases.gate) if needs_gate else None,
            _project(grad_raised_XF, normal_XH, bases.up) if needs_up else None,
            grad_down,
            None,
            None,
            None,
        )


def _project(grad_XM: Tensor, x_XN: Tensor, basis_NR: Tensor) -> Tensor:
    """The weight gradient grad^T x of y = W x, projected: (grad^T (x V)) V^T, M x N."""
    return (grad_XM.T @ (x_XN @ basis_NR)) @ basis_NR.T


def _degraded_forward(block: nn.Module) -> _DegradedForward:
    if not isinstance(block.forward, _DegradedForward):
        raise ValueError("the block is not degraded")
    return block.forward
