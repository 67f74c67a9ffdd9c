"""The subspaces of technique III (MeCeFO, arXiv 2510.16415, section 3): how they are found, and what they are good for.

The weight gradient G (M x N) of a linear map y = W x is projected: P(G) = G V V^T on right singular vectors V of W
(N x R, the paper's choice), or P(G) = U U^T G on left ones U (M x R).

Shape suffixes: H hidden, F intermediate, R rank; M x N is any weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mecefo_runtime.job.config import ApproximationConfig
from mecefo_runtime.model.block_adapters import adapter_of

Side = Literal["left", "right"]

# Each iteration multiplies by W^T W. Once warm, one per refresh follows the weights, which hardly turn in tau steps.
FIRST_ITERATIONS = 4
WARM_ITERATIONS = 1


@dataclass(frozen=True, slots=True)
class Bases:
    """Orthonormal columns that span what technique III keeps of each weight gradient of a block, in the weights' dtype.

    `gate` and `up` are H x R: right singular vectors. `down` is H x R where `down_side` is "left", F x R where it is
    "right".
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    down_side: Side


@dataclass(frozen=True, slots=True)
class Projection:
    """The projection of one weight's gradient: on the columns of `basis`, from the `side` that they belong to.

    `weight` is the parameter itself.
    """

    weight: Tensor
    basis: Tensor
    side: Side


def compute_bases(block: nn.Module, config: ApproximationConfig, seed: int, previous: Bases | None = None) -> Bases:
    """Compute the bases of `block`, degraded or not, from its weights as they are now.

    Without `previous` from random starts drawn from `seed`, with `previous` as a refresh of these. They depend on the
    weights, the seed and the number of refreshes alone, to the bit: ranks that hold copies of the block agree on them
    without a word, as long as they compute on the same kind of device with the same number of threads. The rank is
    capped at the smaller side of the weights.

    Raises:
        TypeError: the block is of a kind that cannot be degraded.
    """
    parts = adapter_of(block)
    is_left = config.down_projection == "left"
    gate_FH, up_FH, down_HF = (linear.weight.detach() for linear in (parts.gate, parts.up, parts.down))
    # Turned so that the wanted singular vectors are the right ones.
    turned = (gate_FH, up_FH, down_HF.T if is_left else down_HF)
    if previous is None:
        # Drawn on the CPU, so that the device does not change the draw.
        generator = torch.Generator().manual_seed(seed)
        starts = [torch.randn(w.shape[1], min(config.rank, *w.shape), generator=generator) for w in turned]
        num_iterations = FIRST_ITERATIONS
    else:
        starts = [previous.gate, previous.up, previous.down]
        num_iterations = WARM_ITERATIONS
    gate, up, down = (
        leading_right_singular_vectors(weight_MN, start_NR, num_iterations)
        for weight_MN, start_NR in zip(turned, starts, strict=True)
    )
    return Bases(gate, up, down, config.down_projection)


def leading_right_singular_vectors(weight_MN: Tensor, start_NR: Tensor, num_iterations: int) -> Tensor:
    """The subspace of the R leading right singular vectors, N x R with orthonormal columns, by subspace iteration.

    `start_NR` is random, or the answer for a similar matrix (Halko, Martinsson and Tropp 2011, arXiv 0909.4061,
    algorithm 4.4). Computed in fp32 at least; the result has the device and dtype of `weight_MN`.
    """
    # Always a copy, whose memory is aligned: the order of the sums of a product may depend on how its operands lie
    # (MKL 2024.2 on an AMD EPYC), and the holders of a block have it at different places in their buffers.
    wide_MN = weight_MN.to(torch.promote_types(weight_MN.dtype, torch.float32), copy=True)
    basis_NR = start_NR.to(wide_MN)
    for _ in range(num_iterations):
        basis_NR = torch.linalg.qr(wide_MN.T @ (wide_MN @ basis_NR)).Q
    return basis_NR.to(weight_MN.dtype)


def projections(block: nn.Module, bases: Bases) -> tuple[Projection, ...]:
    """Which gradients of `block` technique III projects, and on what: those of gate, up and down.

    Raises:
        TypeError: the block is of a kind that cannot be degraded.
    """
    parts = adapter_of(block)
    return (
        Projection(parts.gate.weight, bases.gate, "right"),
        Projection(parts.up.weight, bases.up, "right"),
        Projection(parts.down.weight, bases.down, bases.down_side),
    )


def correct_(gradient_MN: Tensor, basis: Tensor, scale: float, side: Side) -> None:
    """Give what technique III cut off the mean over the exact replicas; ours, not the paper's. In place.

    `gradient_MN` is the sum S over all replicas, of exact gradients G from some and projected ones P(G) from others,
    all projected on this `basis` (orthonormal, M x R for "left", N x R for "right"). `scale` is the samples of all
    replicas over those of the exact ones. S becomes scale * S - (scale - 1) * P(S): since P(P(G)) = P(G), the part in
    the subspace stays the sum over all replicas, and the rest is the exact replicas' sum, scaled up to all samples.
    4 R M N operations.

    Raises:
        ValueError: `scale` is below 1 or not finite: without an exact replica there is nothing to scale.
    """
    if not 1 <= scale < math.inf:
        raise ValueError(f"scale must be a finite number of at least 1, not {scale}")
    basis = basis.to(gradient_MN.dtype)
    if side == "left":
        gradient_MN.addmm_(basis, basis.T @ gradient_MN, beta=scale, alpha=1 - scale)
    else:
        gradient_MN.addmm_(gradient_MN @ basis, basis.T, beta=scale, alpha=1 - scale)
