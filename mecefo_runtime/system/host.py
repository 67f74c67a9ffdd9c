"""Hosts and their boots: the scope in which a pid and a monotonic time are valid."""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_APPLICATION = b"mecefo-chaos"
_DIGEST_CHARACTERS = 16
_MAX_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Host:
    """One boot of one host: pids and monotonic times are valid only within it.

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


class ForeignPid(int):
    """A pid of another host than the run's. It equals no pid of any other host, whatever the number."""

    host: Host

    def __new__(cls, number: int, host: Host) -> ForeignPid:
        """`number` is the pid on `host`."""
        pid = super().__new__(cls, number)
        pid.host = host
        return pid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignPid) and int(self) == int(other) and self.host == other.host

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self.host))

    def __reduce__(self) -> tuple[type[ForeignPid], tuple[int, Host]]:
        return ForeignPid, (int(self), self.host)


def pid_of(told: object) -> int | None:
    """The pid in the log's form of a process: a number, a list, or a mapping with `pid` and, if foreign, `host`."""
    number = told.get("pid") if isinstance(told, Mapping) else told[0] if isinstance(told, list) and told else told
    if not isinstance(number, int):
        return None
    host = told.get("host") if isinstance(told, Mapping) else None
    try:
        return number if host is None else ForeignPid(number, Host.from_json(host))
    except ValueError:
        return number


UNKNOWN_HOST = Host("", "")
"""The host of a process that was stored without one by an earlier version; never equal to this host."""


@functools.cache
def this_host() -> Host:
    """The host on which this process runs; its boot is empty where the kernel has no boot id (some sandboxes)."""
    try:
        boot = _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        boot = ""
    return Host(socket.gethostname(), boot)


@functools.cache
def machine_digest() -> str:
    """An id of this machine that all its boots share; empty on a system without /etc/machine-id.

    It is a digest, because machine-id(5) itself must be kept confidential.
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
