"""The script's own record of its steps, against which the figures of `chaos run` are checked."""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch


class StepLog:
    """Appends a JSON line to `steps-RANK.jsonl` when a step begins and when it is done, and flushes it.

    Times are seconds of the host's monotonic clock, which all processes share.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"steps-{rank}.jsonl").open("a", buffering=1)

    def began(self, step: int) -> None:
        """Before anything of the step, its batch included."""
        self._write("began", step)

    def done(self, step: int, loss: float | None = None) -> None:
        """After the optimizer's step."""
        self._write("done", step, loss=loss)

    def resumed(self, step: int) -> None:
        """A checkpoint that was made after `step` has been loaded."""
        self._write("resumed", step)

    def ended(self, step: int, parameters: Iterable[torch.Tensor]) -> None:
        """After the last step, where every rank has the whole model: a checksum of all its parameters."""
        digest = hashlib.sha256()
        for parameter in parameters:
            digest.update(parameter.detach().numpy().tobytes())
        self._write("ended", step, checksum=digest.hexdigest())

    def _write(self, what: str, step: int, **fields: float | str | None) -> None:
        line = {"what": what, "step": step, "seconds": time.monotonic(), "pid": os.getpid(), **fields}
        self._file.write(json.dumps(line) + "\n")
