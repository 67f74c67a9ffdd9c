"""Making the networks: as the first thing that a process with one thread does, before it loads anything.

That process then belongs to namespaces of its own, in which it is allowed what root is; on the rest of the machine its
rights are what they were. It holds all networks by descriptors: no other process is needed to keep them.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from chaos.host.join_network import INTERFACE as INTERFACE
from harness.network.plan import PREFIX_LENGTH, Networks, Site
from harness.network.rtnetlink import RoutingSocket
from mecefo_runtime.system.own_network import CLONE_NEWNET, OwnNetwork

CLONE_NEWUSER = 0x10000000
BRIDGE = "bridge"


def leave_for_own_namespaces() -> None:
    """Move this process, which must have one thread, to a new user namespace and a new network namespace.

    Users and groups keep their numbers where this process may map them (root may); otherwise its own user is 0 inside,
    without a single right more on files.

    Raises:
        OSError: the kernel does not allow it.
    """
    pid = os.getpid()
    maps = {name: Path(f"/proc/self/{name}").read_text(encoding="utf-8") for name in ("uid_map", "gid_map")}
    own = {"uid_map": f"0 {os.geteuid()} 1\n", "gid_map": f"0 {os.getegid()} 1\n"}
    is_apart_reader, is_apart_writer = os.pipe()
    # Who maps more than its own number must do so from outside.
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(is_apart_writer)
            if os.read(is_apart_reader, 1):
                for name, text in maps.items():
                    _map(Path(f"/proc/{pid}"), name, _identity(text), own[name])
                code = 0
        finally:
            os._exit(code)
    os.close(is_apart_reader)
    try:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        os.write(is_apart_writer, b".")
    finally:
        os.close(is_apart_writer)
        status = os.waitpid(child, 0)[1]
    if status:
        raise OSError(0, "the user and group numbers of the new namespace could not be set")


def make_networks(sites: Iterable[Site]) -> Networks:
    """Make a network for each site, all on one bridge in this process's namespace; the descriptors are inheritable.

    Raises:
        OSError: the kernel does not allow it.
    """
    made: dict[str, OwnNetwork] = {}
    with RoutingSocket() as here:
        here.set_up(socket.if_nametoindex("lo"))
        here.add_bridge(BRIDGE)
        bridge_index = socket.if_nametoindex(BRIDGE)
        for number, site in enumerate(sites):
            own = OwnNetwork(_new_namespace(), site.address)
            here.add_cable(f"site{number}", bridge_index, INTERFACE, own.descriptor)
            with own.entered(), RoutingSocket() as there:
                there.set_up(socket.if_nametoindex("lo"))
                index = socket.if_nametoindex(INTERFACE)
                there.add_address(index, site.address, PREFIX_LENGTH)
                there.set_up(index)
            made[site.name] = own
    return Networks(made)


def _new_namespace() -> int:
    here = OwnNetwork(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), "")
    try:
        _unshare(CLONE_NEWNET)
        made = os.open("/proc/self/ns/net", os.O_RDONLY)
        here.enter()
    finally:
        os.close(here.descriptor)
    os.set_inheritable(made, True)
    return made


def _unshare(kinds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _identity(text: str) -> str:
    """Every number that is known here, as itself."""
    rows = [line.split() for line in text.splitlines()]
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in rows)


def _map(process: Path, name: str, identity: str, own: str) -> None:
    try:
        (process / name).write_text(identity, encoding="utf-8")
    except OSError:
        if name == "gid_map":
            # The kernel's condition for a user that maps its own group.
            (process / "setgroups").write_text("deny", encoding="utf-8")
        (process / name).write_text(own, encoding="utf-8")
