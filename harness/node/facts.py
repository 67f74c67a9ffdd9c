"""What the agent of a host says of it: the version of the tool, its addresses, and where it keeps its ledgers."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def tool_version() -> str:
    """The version of this installation."""
    try:
        return version("mecefo-chaos")
    except PackageNotFoundError:
        return "unknown"


def addresses(proc: Path = Path("/proc/net")) -> tuple[str, ...]:
    """The addresses of this host's network interfaces, those of the loopback left out."""
    found: list[str] = []
    with suppress(OSError):
        found += _LOCAL_IPV4.findall((proc / "fib_trie").read_text(encoding="utf-8"))
    with suppress(OSError):
        for line in (proc / "if_inet6").read_text(encoding="utf-8").splitlines():
            found.append(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    known = dict.fromkeys(found)
    return tuple(one for one in known if not ipaddress.ip_address(one).is_loopback)
