"""Which host this is, and since which start of its kernel: what a pid and a monotonic time are valid in."""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_APPLICATION = b"mecefo-chaos"
_DIGEST_CHARACTERS = 16
_MAX_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Host:
    """One host from one start of its kernel to the next: a pid, and a monotonic time, mean something only within it.

    `boot` is the kernel's random boot id, so that two machines with one `name` are two hosts.
    """

    name: str
    boot: str

    def __str__(self) -> str:
        return self.name or "an unknown host"

    @property
    def is_here(self) -> bool:
        """Whether this process runs on it, since the same boot."""
        return self == this_host()

    def to_json(self) -> list[str]:
        """As a list of name and boot."""
        return [self.name, self.boot]

    @classmethod
    def from_json(cls, raw: object) -> Host:
        """Read such a list.

        Raises:
            ValueError: it is not a list of two texts.
        """
        if not isinstance(raw, Sequence) or isinstance(raw, str) or len(raw) != 2:
            raise ValueError("a host is a list of its name and its boot id")
        name, boot = raw
        if not (isinstance(name, str) and isinstance(boot, str) and max(len(name), len(boot)) <= _MAX_CHARACTERS):
            raise ValueError("the name and the boot id of a host are texts")
        return cls(name, boot)


UNKNOWN_HOST = Host("", "")
"""The host of what an earlier version wrote down without one; never this host."""


@functools.cache
def this_host() -> Host:
    """The host on which this process runs; its boot is empty where the kernel does not tell (a sandbox)."""
    try:
        boot = _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        boot = ""
    return Host(socket.gethostname(), boot)


@functools.cache
def machine_digest() -> str:
    """A text that all boots of this machine share and no other machine has; empty where the system keeps no such id.

    A digest, because machine-id(5) itself should not be shown to others.
    """
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    if not re.fullmatch("[0-9a-f]{32}", text):
        return ""
    return hmac.new(bytes.fromhex(text), _APPLICATION, hashlib.sha256).hexdigest()[:_DIGEST_CHARACTERS]


def time_namespace(pid: int | None = None) -> str:
    """The time namespace of a process of this host (None: this process), empty where the kernel has none.

    CLOCK_MONOTONIC of two processes can be compared only within one.
    """
    try:
        return str(Path(f"/proc/{'self' if pid is None else pid}/ns/time").readlink())
    except OSError:
        return ""
