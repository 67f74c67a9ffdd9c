"""A process's own network: a Linux network namespace that was made for it, and its address there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    """`descriptor` is an open one of the namespace; `address` (IPv4) is what others reach this process by."""

    descriptor: int
    address: str

    def enter(self) -> None:
        """Move the calling thread in permanently; whatever it opens afterwards belongs there.

        Raises:
            OSError: the namespace may not be entered.
        """
        enter_namespace(self.descriptor, CLONE_NEWNET)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A context inside the namespace: sockets that are made in it stay there."""
        back = os.open(Path("/proc/thread-self/ns/net"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.enter()
            try:
                yield
            finally:
                enter_namespace(back, CLONE_NEWNET)
        finally:
            os.close(back)


def enter_namespace(descriptor: int, kind: int) -> None:
    """setns(2) for the calling thread. By ctypes: `os.setns` came with Python 3.12.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the namespace: {os.strerror(number)}")
