"""NCCL's groups of one epoch, for tensors on GPUs: a communicator for every lane and for every reduction.

One for each lane, because what one communicator carries runs in the order in which it was asked for: with both
directions of a pipeline in one, a send that waits for its receive would keep that receive's own send from running
(1F1B asks for them in different orders on the two sides).

Unlike gloo's groups, NCCL's can be aborted (torch 2.13, ProcessGroupNCCL::abort). An aborted operation looks completed,
with anything in its tensor: so every wait here ends on the host, and looks whether there was an abort after it saw the
operation complete. What is called reduced has then been reduced.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from mecefo_runtime.comm.operations import NOT_YET, EpochBroken, Operation, Owner, breaking_epoch, take_down
from mecefo_runtime.comm.rendezvous import RendezvousStore
from mecefo_runtime.comm.transport import Lane

# Communicators come up one after another, the first of a process in seconds.
FORM_TIMEOUT_SECONDS = 60.0
# An abort takes milliseconds. One that does not end leaves kernels running that write to memory which is to be used
# again.
ABORT_DEADLINE_SECONDS = 10.0
POLL_SECONDS = 5e-5
# Read by torch when a group is made (torch 2.13, ProcessGroupNCCL.hpp). Errors are ours to handle: the default ends
# the process. The monitor would end it too, and asks the store for keys that ours does not serve. That what a
# communicator carries is serialized is what lanes are for.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}


def prepare() -> None:
    """Set what torch and CUDA read from the environment, once, before CUDA begins here and there are threads."""
    os.environ.update(_SETTINGS)
    # How many queues the GPU has for the streams of a process; 8 unless told otherwise. With more streams than queues,
    # a kernel that waits for a peer may be in front of the very one that this peer waits for.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


class Nccl:
    """The communicators of `rank`, on `device`: for each of `lanes` and `reductions` that it has part in.

    All members walk through the same lanes and reductions in the same order, or they would wait for each other.

    Raises:
        EpochBroken: a peer did not come.
    """

    def __init__(
        self,
        store: RendezvousStore,
        prefix: str,
        rank: int,
        lanes: Sequence[Lane],
        reductions: Sequence[tuple[int, ...]],
        owner: Owner,
        device: torch.device,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._owner = owner
        self._device = device
        self._groups: dict[Lane | tuple[int, ...], Any] = {}
        self._lock = threading.Lock()
        self._aborting: list[threading.Thread] | None = None
        # Of this thread, which is not the one that trains.
        torch.cuda.set_device(device)
        try:
            with breaking_epoch():
                for lane in lanes:
                    if rank in (lane.source, lane.destination):
                        name = f"{lane.source}-to-{lane.destination}-{'state' if lane.is_state else 'activations'}"
                        self._groups[lane] = self._form(name, (lane.source, lane.destination))
                for holders in reductions:
                    if rank in holders:
                        self._groups[holders] = self._form("-".join(map(str, holders)), holders)
        except EpochBroken:
            self.close()
            raise

    def _form(self, name: str, ranks: tuple[int, ...]) -> Any:
        kind: Any = dist.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = self._owner.timeout
        options.group_name = f"{self._prefix}/{name}"
        options.global_ranks_in_group = list(ranks)
        store = PrefixStore(f"{self._prefix}/nccl/{name}", self._store)
        group = kind(store, ranks.index(self._rank), len(ranks), options)
        # Now, not at the first operation: by then nobody answers for the store.
        group.eager_connect_single_device(self._device)
        return group

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Operation:
        """Start sending."""
        group = self._group(Lane.of(self._rank, destination, tag))
        with breaking_epoch():
            work = group.send([tensor], 1, 0)
        return self._operation(work)

    def start_receive(self, tensor: torch.Tensor, source: int, tag: int) -> Operation:
        """Start receiving into `tensor`; a lane's messages come in the order in which they were sent."""
        group = self._group(Lane.of(source, self._rank, tag))
        with breaking_epoch():
            work = group.recv([tensor], 0, 0)
        return self._operation(work)

    def start_all_reduce(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> Operation:
        """Start summing `tensor` over `holders`."""
        group = self._group(holders)
        with breaking_epoch():
            work = group.allreduce([tensor])
        return self._operation(work)

    def is_aborted(self) -> bool:
        """Whether `abort` was called: from then on no operation counts as done."""
        return self._aborting is not None

    def abort(self) -> int:
        """End every kernel that waits for a peer, from any thread; returns without waiting for that."""
        with self._lock:
            if self._aborting is not None:
                return 0
            # All at once: the end of one communicator may wait for the device, and with it for another's kernel, which
            # has to be told first (https://github.com/pytorch/pytorch/issues/119797).
            self._aborting = [
                threading.Thread(target=group.abort, name="nccl-abort", daemon=True) for group in self._groups.values()
            ]
            for thread in self._aborting:
                thread.start()
            return len(self._aborting)

    def close(self) -> None:
        """Abort, and let go of the communicators when none of their kernels runs any more.

        Raises:
            RuntimeError: one does not end. This process is of no further use.
        """
        self.abort()
        deadline = time.monotonic() + ABORT_DEADLINE_SECONDS
        assert self._aborting is not None
        for thread in self._aborting:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise RuntimeError(f"NCCL did not end its operations within {ABORT_DEADLINE_SECONDS:.0f} s")
        torch.cuda.synchronize(self._device)
        doomed = list(self._groups.values())
        self._groups.clear()
        take_down(doomed)

    def _group(self, key: Lane | tuple[int, ...]) -> Any:
        if self.is_aborted():
            raise EpochBroken("the epoch was aborted")
        return self._groups[key]

    def _operation(self, work: Any) -> Operation:
        return Operation(ConfirmedWork(work, self.is_aborted), self._owner, is_message=False)


class ConfirmedWork:
    """An operation on a device that counts as done only if nobody had aborted it by then."""

    def __init__(self, work: Any, is_aborted: Callable[[], bool]) -> None:
        self._work = work
        self._is_aborted = is_aborted

    def wait(self, timeout: timedelta) -> bool:
        """Wait on the host.

        Raises:
            EpochBroken: it was aborted, or may have been.
            RuntimeError: it failed, or takes longer than `timeout`; then the wait may be taken up again.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            # In this order: what an abort ended is seen to be complete after the abort was announced.
            is_completed = self._work.is_completed()
            if self._is_aborted():
                raise EpochBroken("the epoch was aborted")
            if is_completed:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(NOT_YET)
            time.sleep(POLL_SECONDS)
        # Without a time-out it does not block: it raises what NCCL found, and lets go of the tensors.
        self._work.wait()
        return True
