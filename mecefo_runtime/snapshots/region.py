"""Memory that a rank writes and its node's snapshot process owns: it outlives the rank, and is private to both.

An anonymous file (memfd_create(2)) of the snapshot process, which the rank opens by that process's descriptor. It is
freed when both have ended, however they end, and leaves nothing in a file system.
"""

from __future__ import annotations

import mmap
import os
import struct

_HEADER_BYTES = mmap.PAGESIZE
# How a sequence number stands in the header.
SEQUENCE = struct.Struct("<Q")
# As the kernel shows it, behind "/memfd:".
MEMORY_NAME = "snapshots"
NUM_BUFFERS = 2
# Parts begin where any element may.
ALIGNMENT = 64


def aligned(num_bytes: int) -> int:
    """The first place from `num_bytes` on where a part may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Region:
    """Two buffers of `num_bytes` each, and for each the sequence number of what was last begun to be written to it.

    A rank begins a snapshot by counting up: whatever the buffer held counts no more, though the rank should die the
    next moment. A snapshot is whole when the snapshot process has been told the number that still stands there.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        # Populated: touching a page for the first time takes three times as long as copying into it.
        self._memory = mmap.mmap(
            descriptor, size_of(num_bytes), mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE
        )

    @classmethod
    def create(cls, num_bytes: int) -> Region:
        """Allocate new memory, committed at once.

        Raises: OSError: there is not enough memory.
        """
        descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size_of(num_bytes))
            return cls(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, pid: int, descriptor: int, num_bytes: int) -> Region:
        """The memory that the process `pid` of the same user has as `descriptor`.

        Raises:
            OSError: it is gone, or not ours.
        """
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(own, num_bytes)
        finally:
            # What is mapped stays so.
            os.close(own)

    def begin(self, buffer: int) -> int:
        """Begin to write to `buffer`; returns the sequence number of what will be there."""
        sequence = self.sequence(buffer) + 1
        SEQUENCE.pack_into(self._memory, buffer * SEQUENCE.size, sequence)
        return sequence

    def sequence(self, buffer: int) -> int:
        """The number of what was last begun to be written to `buffer`; 0: nothing was."""
        return int(SEQUENCE.unpack_from(self._memory, buffer * SEQUENCE.size)[0])

    def buffer(self, number: int) -> memoryview:
        """The bytes of a buffer."""
        first, _ = self.offsets(number)
        return memoryview(self._memory)[first : first + self.num_bytes]

    def offsets(self, buffer: int) -> tuple[int, int]:
        """Where in the file the bytes of a buffer begin, and where its sequence number is."""
        return _HEADER_BYTES + buffer * aligned(self.num_bytes), buffer * SEQUENCE.size

    @property
    def memory(self) -> memoryview:
        """All of it, as it is mapped."""
        return memoryview(self._memory)

    def close(self) -> None:
        """Of whoever created it: let go of the file; the memory goes when nobody looks at it any more."""
        os.close(self.descriptor)


def size_of(num_bytes: int) -> int:
    """Bytes of a region whose buffers have `num_bytes`."""
    return _HEADER_BYTES + NUM_BUFFERS * aligned(num_bytes)
