"""Devices that are known by name: tables predicted from counted operations and published figures, none measured.

NVIDIA A100 80 GB SXM: 312 TFLOP/s in bfloat16 and 2.039 TB/s of memory bandwidth (data sheet of 2021, NVIDIA
A100 Tensor Core GPU), 300 GB/s each way by NVLink inside a node, and 200 Gb/s, so 25 GB/s, of InfiniBand for each GPU
between nodes (DGX A100: eight adapters for eight GPUs). What share of the peak a model reaches is an assumption: the
larger its matrices, the more. Ratios between layers, exact and degraded, do not depend on it; those to links do.
"""

from __future__ import annotations

from collections.abc import Mapping

from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.device_model import DeviceModel
from mecefo_runtime.prediction.predicted_costs import predict_costs

_PEAK_FLOPS_PER_SECOND = 312e12
_MEMORY_BYTES_PER_SECOND = 2.039e12
_MEMORY_UTILISATION = 0.8
# Of 80 GB: the rest is the CUDA context's and the allocator's.
_MEMORY_BYTES = 76 * 10**9
_INFINIBAND = Link(bandwidth_bytes_per_second=25e9, latency_seconds=5e-6)
_NVLINK = Link(bandwidth_bytes_per_second=300e9, latency_seconds=2e-6)
# bfloat16 for what is computed with; parameters, gradients and the optimizer's moments have 16 bytes together.
_ACTIVATION_VALUE_BYTES = 2
# Preset, share of the peak that its matrix products reach, r of the low-rank gradient, sequences of a microbatch.
_KNOWN: Mapping[str, tuple[str, float, int, int]] = {
    "a100-7b": ("7b", 0.5, 64, 8),
    "a100-1b": ("1b", 0.45, 64, 16),
    "a100-350m": ("350m", 0.35, 64, 32),
}
# The paper's (arXiv 2510.16415).
_SEQUENCE_LENGTH = 256

NAMES = tuple(_KNOWN)


def named_device(
    name: str,
    *,
    sequence_length: int | None = None,
    microbatch_size: int | None = None,
    approximation_rank: int | None = None,
) -> DeviceModel:
    """The device of this `name`, for another shape of the microbatch or rank of the approximation where one is given.

    Raises: KeyError: there is no device of this name.
    """
    model, utilisation, rank, sequences = _KNOWN[name]
    tokens, sequences, rank = (
        sequence_length or _SEQUENCE_LENGTH,
        microbatch_size or sequences,
        approximation_rank or rank,
    )
    costs = predict_costs(
        PRESETS[model],
        tokens,
        sequences,
        ApproximationConfig(rank=rank),
        flops_per_second=utilisation * _PEAK_FLOPS_PER_SECOND,
        accesses_bytes_per_second=_MEMORY_UTILISATION * _MEMORY_BYTES_PER_SECOND,
        transfer_bytes_per_second=_INFINIBAND.bandwidth_bytes_per_second,
        activation_value_bytes=_ACTIVATION_VALUE_BYTES,
        memory_bytes=_MEMORY_BYTES,
    )
    return DeviceModel(
        name=name,
        provenance="predicted",
        device="NVIDIA A100 80 GB SXM",
        model=model,
        sequence_length=tokens,
        microbatch_size=sequences,
        approximation_rank=rank,
        costs=costs,
        links=Links(between_nodes=_INFINIBAND, inside_node=_NVLINK),
        activation_value_bytes=_ACTIVATION_VALUE_BYTES,
        basis=(
            f"counted operations at {utilisation:.0%} of 312 TFLOP/s (bfloat16), "
            f"memory accesses at {_MEMORY_UTILISATION:.0%} of 2.039 TB/s"
        ),
    )
