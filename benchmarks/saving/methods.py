"""Other ways to save the same state: torch.save, and torch's distributed checkpoints, which go on in the background.

nvidia-resiliency-ext's local checkpoints are not among them: its state must be on a GPU, and it waits for one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse, async_save

from benchmarks.saving.nodes import Save

TORCH_SAVE, DCP_THREAD, DCP_PROCESS = "torch.save", "DCP async_save, thread", "DCP async_save, process"


class Methods:
    """The ways by name: each saves a state into `folder` and says what that took. A context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._stagers: dict[tuple[str, int], DefaultStager] = {}
        self._num_saves = 0
        self.ways: Mapping[str, Callable[[Mapping[str, Tensor]], Save]] = {
            TORCH_SAVE: self._torch_save,
            DCP_THREAD: lambda state: self._async_save(state, DCP_THREAD, AsyncCheckpointerType.THREAD),
            DCP_PROCESS: lambda state: self._async_save(state, DCP_PROCESS, AsyncCheckpointerType.PROCESS),
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        store = (self._folder / "store").absolute().as_uri()
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        self._stack.callback(dist.destroy_process_group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stager in self._stagers.values():
            stager.close()
        self._stack.close()

    def _torch_save(self, state: Mapping[str, Tensor]) -> Save:
        path = self._new_path()
        began = time.perf_counter()
        torch.save(dict(state), path)
        seconds = time.perf_counter() - began
        path.unlink()
        return Save(seconds, seconds)

    def _async_save(self, state: Mapping[str, Tensor], name: str, way: AsyncCheckpointerType) -> Save:
        # Its buffers are used again, so that no page is touched for the first time.
        key = name, sum(tensor.nbytes for tensor in state.values())
        if key not in self._stagers:
            options = StagingOptions(False, way is AsyncCheckpointerType.PROCESS, False, False)
            self._stagers[key] = DefaultStager(options)
        path = self._new_path()
        began = time.perf_counter()
        response = async_save(
            dict(state),
            storage_writer=FileSystemWriter(path),
            async_checkpointer_type=way,
            async_stager=self._stagers[key],
        )
        stopped_seconds = time.perf_counter() - began
        upload: Future[Any] = response.upload_completion if isinstance(response, AsyncSaveResponse) else response
        upload.result()
        total_seconds = time.perf_counter() - began
        shutil.rmtree(path)
        return Save(stopped_seconds, total_seconds)

    def _new_path(self) -> Path:
        self._num_saves += 1
        return self._folder / str(self._num_saves)
