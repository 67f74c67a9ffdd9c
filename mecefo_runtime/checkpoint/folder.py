"""A checkpoint's folder without its tensors: whether it exists, is complete, and what it belongs to.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mecefo_runtime.checkpoint.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    CheckpointMismatch,
    Identity,
    Manifest,
    Stamp,
    read_manifest,
    verified_files,
)
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` is."""
    return root / f"step-{step:08}"


def unit_names(num_layers: int) -> tuple[str, ...]:
    """All units of a model, in pipeline order."""
    return (EMBEDDING, *map(layer_unit, range(num_layers)), HEAD)


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A complete checkpoint: the sizes of all files have been checked, checksums have not."""

    path: Path
    stamp: Stamp
    manifests: Mapping[str, Manifest]

    @property
    def step(self) -> int:
        """The committed step after which this was the state."""
        return self.stamp.step

    @property
    def identity(self) -> Identity:
        """What it is a checkpoint of."""
        return self.stamp.identity

    @property
    def num_bytes(self) -> int:
        """Bytes of all units."""
        return sum(manifest.num_bytes for manifest in self.manifests.values())

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of a step.

        Raises:
            CheckpointCorrupt: it is not complete; the message names what is missing or damaged.
        """
        stamp = Manifest.read(path / EMBEDDING / MANIFEST).stamp
        if path.name.startswith("step-") and path.name != step_folder(path, stamp.step).name:
            raise CheckpointCorrupt(path / EMBEDDING / MANIFEST, f"a unit of {path.name}", f"step {stamp.step}")
        manifests = {unit: read_manifest(path / unit, unit) for unit in unit_names(stamp.identity.model.num_layers)}
        for unit, manifest in manifests.items():
            if manifest.stamp != stamp:
                found = f"step {manifest.stamp.step} of {manifest.stamp.lineage!r}"
                expected = f"a unit of the same save as {EMBEDDING}, step {stamp.step} of {stamp.lineage!r}"
                raise CheckpointCorrupt(path / unit / MANIFEST, expected, found)
        return cls(path, stamp, manifests)

    def require(self, identity: Identity) -> None:
        """Refuse to let a job of `identity` continue from here unless it is the same model on the same data.

        Raises:
            CheckpointMismatch: it is not; the message names the difference.
        """
        difference = self.identity.difference(identity)
        if difference is not None:
            raise CheckpointMismatch(f"{self.path} is of another job: its {difference}")

    def verify(self) -> None:
        """Check every byte.

        Raises:
            CheckpointCorrupt: a file is not what was written.
        """
        for unit, manifest in self.manifests.items():
            with verified_files(self.path / unit, manifest):
                pass


def complete_folders(root: Path) -> Iterator[CheckpointFolder]:
    """All complete checkpoints in `root`, the newest first; those that are not complete are passed over.

    Raises:
        OSError: `root` is no folder, or cannot be listed. That it does not exist yet is no error.
    """
    for path in step_folders(root):
        with suppress(CheckpointCorrupt):
            yield CheckpointFolder.open(path)


def passed_over(root: Path, after_step: int) -> list[str]:
    """Why each checkpoint in `root` of a later step than `after_step` is incomplete, newest first.

    A checkpoint that is still being written is included.

    Raises:
        OSError: `root` is no folder, or cannot be listed.
    """
    reasons = []
    # Whatever has the name, also what is no folder any more.
    named = [path for path in _entries(root) if _STEP_FOLDER.fullmatch(path.name)]
    for path in sorted(named, key=step_of, reverse=True):
        if step_of(path) > after_step:
            try:
                CheckpointFolder.open(path)
            except CheckpointCorrupt as error:
                reasons.append(str(error))
    return reasons


def step_folders(root: Path) -> list[Path]:
    """The folders of steps, complete or not, the newest first; none when `root` does not exist.

    Raises:
        OSError: `root` is no folder, or cannot be listed.
    """
    found = [path for path in _entries(root) if _STEP_FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step of which `path` is the folder."""
    return int(path.name.removeprefix("step-"))


def _entries(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except FileNotFoundError:
        return []
