"""The process groups of one epoch: formed quickly, aborted on demand, closed without leftovers.

The tensor's device decides which transport carries it: see `transport`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from mecefo_runtime.comm.gloo import Gloo
from mecefo_runtime.comm.operations import EpochBroken, Operation, Owner, Waiter
from mecefo_runtime.comm.rendezvous import RendezvousStore
from mecefo_runtime.comm.transport import Staged, Transport
from mecefo_runtime.system.wire import LOOPBACK

# After an abort, blocked operations end within some 10 ms (333 at most have been seen).
FORGOTTEN_SECONDS = 1.0


class Groups:
    """World and reduction groups of one epoch, as seen by one member.

    The world group carries activations, state and the commit; one group for every set in `reductions` that this rank
    is in carries gradients. `host` is this rank's own address. `form_device_groups` forms the groups for tensors on a
    GPU; None: these tensors are staged. `must_stage` stages tensors in host memory too, which only serves to test the
    staging.

    Raises:
        EpochBroken: a peer did not come.
    """

    def __init__(
        self,
        store: RendezvousStore,
        epoch: int,
        rank: int,
        members: Sequence[int],
        reductions: Sequence[tuple[int, ...]],
        timeout_seconds: float,
        host: str = LOOPBACK,
        *,
        form_device_groups: Callable[[Owner], Transport] | None = None,
        must_stage: bool = False,
    ) -> None:
        self.epoch = epoch
        self.rank = rank
        self.members = tuple(sorted(members))
        self.timeout = timedelta(seconds=timeout_seconds)
        self.waiter = Waiter()
        self._store = store
        self._aborted_seconds: float | None = None
        self._is_aborted = threading.Event()
        self._must_stage = must_stage
        self._gloo = Gloo(store, str(epoch), rank, self.members, reductions, self, host)
        self._device: Transport = Staged(self._gloo) if form_device_groups is None else form_device_groups(self)

    def _transport(self, tensor: torch.Tensor) -> Transport:
        return self._gloo if tensor.device.type == "cpu" and not self._must_stage else self._device

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Operation:
        """Start sending; the tensor must live until the returned operation is done."""
        return self._transport(tensor).send(tensor, destination, tag)

    def start_receive(self, tensor: torch.Tensor, source: int, tag: int) -> Operation:
        """Start receiving into `tensor`, which has its content once the operation has been waited for."""
        return self._transport(tensor).start_receive(tensor, source, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Receive into `tensor`, waiting for it."""
        self.start_receive(tensor, source, tag).wait()

    def start_all_reduce(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> Operation | None:
        """Start summing `tensor` over `holders`; None when this rank is the only one."""
        if len(holders) == 1:
            return None
        return self._transport(tensor).start_all_reduce(tensor, holders)

    def all_gather(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> dict[int, torch.Tensor]:
        """Every holder's `tensor` (in host memory, equal shapes), by rank."""
        if len(holders) == 1:
            return {self.rank: tensor}
        return dict(zip(holders, self._gloo.all_gather(tensor, holders), strict=True))

    def wait_until(self, until_seconds: float) -> None:
        """Sleep.

        Raises:
            EpochBroken: the epoch was aborted meanwhile.
        """
        if self._is_aborted.wait(max(0.0, until_seconds - time.monotonic())):
            raise EpochBroken("the epoch is over")

    def abort(self) -> int:
        """End every blocked operation, from any thread; returns how many connections were shut down."""
        if self._aborted_seconds is None:
            self._aborted_seconds = time.monotonic()
        self._is_aborted.set()
        return self._gloo.abort() + self._device.abort()

    def close(self) -> None:
        """Close the groups; the peers notice at once. Afterwards no operation writes to device memory."""
        self.abort()
        self.waiter.stop()
        self._gloo.close()
        self._device.close()

    def is_given_up(self) -> bool:
        """Whether the abort was so long ago that an operation that is still blocked will never return."""
        return self._aborted_seconds is not None and time.monotonic() - self._aborted_seconds > FORGOTTEN_SECONDS


class Formation:
    """Forms groups on a thread of its own, because gloo ignores its time-out when a peer dies while pairs connect.

    `done` tells that `take` will return or raise at once. A formation that is abandoned closes its groups by itself.
    """

    def __init__(self, form: Callable[[], Groups], notify: Callable[[], None]) -> None:
        self._form = form
        self._notify = notify
        self._groups: Groups | None = None
        self._error: str | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        self.done = False
        threading.Thread(target=self._run, name="formation", daemon=True).start()

    def _run(self) -> None:
        groups, message = None, None
        try:
            groups = self._form()
        except Exception as error:  # whatever it is, it is the training thread's to hear
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
        with self._lock:
            if not self._abandoned:
                self._groups, self._error, groups = groups, message, None
            self.done = True
        if groups is not None:
            # NCCL keeps the communicators of groups that are merely forgotten, and the GPU's memory with them.
            groups.close()
            groups = None
        self._notify()

    def take(self) -> Groups:
        """The groups.

        Raises:
            EpochBroken: they could not be formed.
        """
        with self._lock:
            groups, self._groups = self._groups, None
        if groups is None:
            raise EpochBroken(self._error or "groups were not formed in time")
        return groups

    def abandon(self) -> None:
        """The groups are no longer needed: close them once they are formed."""
        with self._lock:
            self._abandoned = True
            groups, self._groups = self._groups, None
        if groups is not None:
            groups.close()
