"""Durable checkpoints: a folder per step, in it one folder per unit, each written by a rank that holds the unit.

`ROOT/step-00000500/layer.0/` is a torch.distributed.checkpoint of that layer alone (see `checkpoint_unit`), so that
what was saved under one layout loads under any other, and other tools can read it. Its tensors are named as in the
unit's module; the optimizer's are `optim.state.NAME.exp_avg`, `.exp_avg_sq` and `.step`, as torch names AdamW's.

A checkpoint is complete when all units of its model are there, of the same step, job and lineage. There is no
completion marker: readers check the units, and the last rank to finish completes it.
"""

from __future__ import annotations

import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from mecefo_runtime.checkpoint.folder import CheckpointFolder, step_folders, step_of
from mecefo_runtime.checkpoint.folder import step_folder as step_folder
from mecefo_runtime.checkpoint.folder import unit_names as unit_names
from mecefo_runtime.checkpoint.manifest import CheckpointCorrupt, CheckpointMismatch, Identity, Manifest
from mecefo_runtime.checkpoint.unit import read_tensors
from mecefo_runtime.job.share import WHOLE
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.model.segments import segments
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.devices import host_bytes

_REMOVED = ".removed-"


def named_tensors(unit: UnitState, storage: Tensor) -> dict[str, Tensor]:
    """Views into `storage` (flat, laid out as `unit.storage`), by their names in a checkpoint."""
    names = {parameter: name for name, parameter in unit.module.named_parameters()}
    n = unit.num_parameters
    tensors: dict[str, Tensor] = {}
    offset = 0
    for index, segment in enumerate(segments(unit.module)):
        for parameter in segment.parameters:
            name, end = names[parameter], offset + parameter.numel()
            tensors[name] = storage[offset:end].view(parameter.shape)
            tensors[f"optim.state.{name}.exp_avg"] = storage[n + offset : n + end].view(parameter.shape)
            tensors[f"optim.state.{name}.exp_avg_sq"] = storage[2 * n + offset : 2 * n + end].view(parameter.shape)
            tensors[f"optim.state.{name}.step"] = storage[3 * n + index]
            offset = end
    return tensors


class Checkpoint(CheckpointFolder):
    """A complete checkpoint, to load from."""

    __slots__ = ()

    def load_unit(self, unit: str, into: UnitState) -> None:
        """Load the saved parameters and optimizer state into `into`; it is unchanged unless all files are intact.

        Raises:
            CheckpointCorrupt: the files are not what was written, or are gone.
            CheckpointMismatch: the checkpoint has no such unit, or one of another shape.
        """
        is_whole = into.share == WHOLE
        storage = into.storage if is_whole else into.storage.new_empty(into.num_elements(WHOLE))
        read_tensors(self.path / unit, self._manifest(unit), named_tensors(into, storage))
        expected, found = self.manifests[unit].state_crc32, zlib.crc32(host_bytes(storage))
        if found != expected:
            raise CheckpointCorrupt(self.path / unit, f"state of CRC-32 {expected:08x}", f"{found:08x}")
        if not is_whole:
            into.load(WHOLE, storage)

    def load_parameters(self, unit: str) -> dict[str, Tensor]:
        """The unit's parameters alone, by their names in its module (see `model`).

        Raises:
            CheckpointCorrupt: the files are not what was written, or are gone.
            CheckpointMismatch: the checkpoint has no such unit.
        """
        manifest = self._manifest(unit)
        module = build_unit(unit, self.identity.model, 0, device="meta")
        tensors = {name: torch.empty(parameter.shape) for name, parameter in module.named_parameters()}
        read_tensors(self.path / unit, manifest, tensors)
        return tensors

    def _manifest(self, unit: str) -> Manifest:
        if unit not in self.manifests:
            raise CheckpointMismatch(f"{self.path} has no unit {unit}: its model has {len(self.manifests) - 2} layers")
        return self.manifests[unit]


def complete(root: Path) -> Iterator[Checkpoint]:
    """All complete checkpoints in `root`, newest first; incomplete ones are skipped.

    Raises:
        OSError: `root` is no folder, or cannot be listed. That it does not exist yet is no error.
    """
    for path in step_folders(root):
        with suppress(CheckpointCorrupt):
            yield Checkpoint.open(path)


def newest(root: Path, identity: Identity | None = None) -> Checkpoint | None:
    """The newest complete checkpoint in `root`, None when there is none.

    Raises:
        CheckpointMismatch: it is not of `identity`. To begin again beside it would be the wrong guess.
        OSError: `root` is no folder, or cannot be listed.
    """
    while True:
        looked_at = step_folders(root)
        checkpoint = next(complete(root), None)
        # Who finds nothing begins again: make sure that what was there did not go while a newer one came.
        if checkpoint is not None or step_folders(root) == looked_at:
            break
    if checkpoint is not None and identity is not None:
        checkpoint.require(identity)
    return checkpoint


def verify(path: Path) -> Checkpoint:
    """Check every byte of the checkpoint at `path`, the folder of a step.

    Raises:
        CheckpointCorrupt: it is not complete, or a file is not what was written.
    """
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    return checkpoint


def prune(root: Path, keep: int) -> list[int]:
    """Remove all but the newest `keep` complete checkpoints, and incomplete ones older than the newest complete.

    Newer incomplete ones may still be being written and are kept. Several ranks may prune and read concurrently.
    Returns the steps that this call removed.

    Raises:
        ValueError: `keep` is less than 1.
        OSError: a folder cannot be removed.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    kept = [checkpoint.step for checkpoint in islice(complete(root), keep)]
    removed = []
    for path in step_folders(root):
        step = step_of(path)
        if not kept or step >= kept[0] or step in kept:
            continue
        # Renamed first: readers see it whole or not at all, and of several who prune only one gets it.
        doomed = root / f"{_REMOVED}{path.name}-{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            path.rename(doomed)
            removed.append(step)
    # Of this call, and of one that was killed.
    for doomed in root.glob(f"{_REMOVED}*"):
        _remove(doomed)
    return removed


def _remove(folder: Path) -> None:
    """Remove a folder that others may be removing too."""

    def ignore_missing(_: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(folder, onerror=ignore_missing)
