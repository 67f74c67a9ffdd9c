"""The settings of the cluster backends in an experiment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from chaos.errors import UsageError, shown
from chaos.experiment.fields import Said, Text
from chaos.language.validation_errors import said

# As ssh takes them: a name or an address, with a user before it.
_HOST = re.compile(r"[A-Za-z0-9_.@:\[\]-]+")
_MAX_HOSTS = 4096
_MAX_FILE_BYTES = 1 << 20


def hosts_of(value: object) -> list[str]:
    """Hosts as a list, or as text: `a,b,c`, or the path of a file with one on each line (the first word counts).

    Raises:
        UsageError: there are none, or one is no host, or twice.
    """
    if isinstance(value, str):
        found = _hosts_of_file(Path(value)) if "," not in value and Path(value).is_file() else value.split(",")
    elif isinstance(value, list | tuple):
        found = [str(one) for one in value]
    else:
        raise UsageError(f"must be hosts such as node1,node2, or a file with one on each line, not {shown(value)}")
    hosts = [host.strip() for host in found if host.strip()]
    if not hosts:
        raise UsageError(f"{shown(value)} names no host")
    for host in hosts:
        # What begins with a hyphen is an option of ssh.
        if not _HOST.fullmatch(host) or host.startswith("-"):
            raise UsageError(f"{shown(host)} is not a host: write names such as node1,node2, or a file of them")
    if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise UsageError(f"{twice[0]} is named twice: each host is one node")
    if len(hosts) > _MAX_HOSTS:
        raise UsageError(f"{len(hosts)} hosts are more than {_MAX_HOSTS}")
    return hosts


def _hosts_of_file(path: Path) -> Sequence[str]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [words[0] for words in lines if words]


class RemoteHosts(Said):
    """The hosts that are reached by ssh."""

    hosts: Annotated[list[Text] | None, BeforeValidator(said(hosts_of))] = Field(
        default=None, description="the hosts, of which the first is node 0: names, or a file with one on each line"
    )
