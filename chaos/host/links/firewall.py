"""Firewall rules in the network namespace of one end of a link, each marked as ours by a comment.

They are found by that comment, through the process that holds the namespace: when it is gone, so are they.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from chaos.errors import HealError
from chaos.host.containers import is_container_running, run_in_container
from chaos.host.run_processes import bears_mark
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.system.json_values import LEFT_OUT
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

TIMEOUT_SECONDS = 30.0
_COMMENT_WORD = "chaos"
# Since 2001, and until 2286.
_DIGITS_OF_NANOSECONDS = 19
_QUEUES = "/proc/net/netfilter/nfnetlink_queue"
# Where Debian and others put what users seldom call.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRecord(UndoRecord):
    """The process that holds a namespace."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallRecord(UndoRecord):
    """The rules of one incident in one namespace, at (`at`) one end of a link, all with the same `comment`.

    The namespace is `descriptor` of the `holder`, or that of a `container` of the `engine`. Packets that the rules
    queue go to `queue`, and are shaped as `shape` says.
    """

    how: str = "namespace-firewall"
    at: str
    holder: HolderRecord | None = field(default=None, metadata=LEFT_OUT)
    descriptor: int | None = field(default=None, metadata=LEFT_OUT)
    engine: str | None = field(default=None, metadata=LEFT_OUT)
    container: str | None = field(default=None, metadata=LEFT_OUT)
    comment: str
    rules: tuple[tuple[str, ...], ...] = ()
    queue: int | None = None
    shape: Mapping[str, Any] | None = None

    @property
    def process(self) -> ProcessId:
        """The process that holds the namespace.

        Raises:
            HealError: it is a container's.
        """
        if self.holder is None:
            raise HealError(Reason("rules_without_place", comment=self.comment))
        return ProcessId(self.holder.pid, self.holder.start_ticks)

    @property
    def is_there(self) -> bool:
        """Whether the namespace can still be there."""
        if self.container is not None and self.engine is not None:
            return is_container_running(self.engine, self.container)
        return self.process.is_running()


class FirewallRules:
    """All rules that one incident adds in one namespace, and the process that handles the packets they queue.

    The namespace is that of a `container` of the `engine`, or one that a process, the `holder`, has open.
    """

    how: ClassVar[str] = "namespace-firewall"

    @classmethod
    def remove(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the rules with the record's comment, and end what serves their queue."""
        known = FirewallRecord.from_json(record)
        if not _is_comment(known.comment):
            raise HealError(Reason("not_our_rules", comment=known.comment))
        evidence: dict[str, Any] = {"comment": known.comment, "at": known.at}
        if not known.is_there:
            return {**evidence, "removed": 0, "gone": "the network is gone with the process that held it"}
        try:
            # Another one may be at it, such as a watchdog: what it deletes between our look and our deletion is gone.
            for _ in range(2):
                removed = _delete(known)
                left = _rules(known)
                if not left:
                    break
            server = None if known.queue is None else _end_server(known, known.queue)
        except (OSError, subprocess.SubprocessError) as error:
            if not known.is_there:
                return {**evidence, "removed": 0, "gone": "the network is gone with the process that held it"}
            raise HealError(Reason("rules_not_removed", comment=known.comment, place=known.at, error=error)) from error
        if left:
            raise HealError(Reason("rules_still_there", comment=known.comment, place=known.at, rules=left))
        return {**evidence, "removed": removed, **({} if server is None else {"ended": server})}


def inside(record: FirewallRecord, command: Sequence[str]) -> list[str]:
    """`command` as it is run in the record's namespace, from outside.

    Raises:
        FileNotFoundError: a program is not installed.
    """
    return enter(record.process.local_pid, record.descriptor, command)


def enter(pid: int, descriptor: int | None, command: Sequence[str]) -> list[str]:
    """`command` as it is run in the namespace that process `pid` has open as `descriptor`.

    Raises:
        FileNotFoundError: a program is not installed.
    """
    where = [f"--user=/proc/{pid}/ns/user", f"--net=/proc/{pid}/fd/{descriptor}"]
    return [find_tool("nsenter"), "--preserve-credentials", *where, find_tool(command[0]), *command[1:]]


def find_tool(name: str) -> str:
    """The path of a program; of the firewall's, the one of nftables, where there is one.

    Raises:
        FileNotFoundError: it is not installed.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS))
    for candidate in (name.replace("iptables", "iptables-nft"), name):
        found = shutil.which(candidate, path=path)
        if found is not None:
            return found
    raise FileNotFoundError(f"{name} is not installed")


def environment() -> dict[str, str]:
    """For the firewall's programs: the older ones take a lock, in a file that must be one that we may write."""
    return {**os.environ, "XTABLES_LOCKFILE": "/dev/null"}


def restore_text(verb: str, rules: Sequence[Sequence[str]]) -> str:
    """`rules`, each a chain and its words, as `iptables-restore --noflush` takes them; `verb` is -I or -D."""
    # No word of ours has a blank in it, and quoting as a shell does is not understood.
    lines = [" ".join((verb, *rule)) for rule in rules]
    return "\n".join(["*filter", *lines, "COMMIT", ""])


def telling_time(command: Sequence[str]) -> list[str]:
    """`command`, by a shell that prints the time right before it becomes it; see `read_time`.

    To start a program in a namespace, or by an engine, takes longer than what it does there.
    """
    return ["sh", "-c", 'date +%s%N; exec "$@"', "sh", *command]


def read_time(printed: str, began_seconds: float) -> float:
    """What `telling_time` printed, as CLOCK_MONOTONIC in seconds; `began_seconds` where its `date` is no GNU one.

    It is never before `began_seconds`, when the program was asked for, so that a clock that is set does no harm.
    """
    words = printed.split()
    if not words or not words[0].isdigit() or len(words[0]) < _DIGITS_OF_NANOSECONDS:
        return began_seconds
    now = time.monotonic()
    ago = time.time() - int(words[0]) / 1e9
    return min(max(began_seconds, now - ago), now)


def run_inside(record: FirewallRecord, command: Sequence[str], text: str = "") -> str:
    """Run `command` in the record's namespace, with `text` as its input; returns what it prints.

    Raises:
        OSError: it failed, and what it said.
    """
    if record.container is not None and record.engine is not None:
        return run_in_container(record.engine, record.container, command, text)
    done = subprocess.run(
        inside(record, command),
        input=text,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _rules(record: FirewallRecord) -> list[str]:
    listed = run_inside(record, ["iptables", "--list-rules"]).splitlines()
    return [line for line in listed if line.startswith("-A ") and _comment_of(shlex.split(line)) == record.comment]


def _is_comment(text: str) -> bool:
    """Whether it is one that names a run: any other may be that of somebody else's rules."""
    word, _, rest = text.partition(":")
    return word == _COMMENT_WORD and bool(rest.strip(":"))


def _comment_of(words: Sequence[str]) -> str | None:
    """What follows `--comment`, which no other word of a rule is."""
    return next((word for option, word in pairwise(words) if option == "--comment"), None)


def _delete(record: FirewallRecord) -> int:
    """Delete what has the comment; returns how many that were."""
    found = _rules(record)
    if found:
        words = [shlex.split(line)[1:] for line in found]
        try:
            run_inside(record, ["iptables-restore", "--noflush"], restore_text("-D", words))
        except OSError:
            # All or nothing: if one of them went meanwhile, the caller finds the others still there, and comes again.
            return 0
    return len(found)


def _end_server(record: FirewallRecord, queue: int) -> int | None:
    """End the process that the kernel names as the one that serves `queue`; returns its pid, None when none does."""
    try:
        listed = run_inside(record, ["cat", _QUEUES])
    except OSError:
        # A kernel that has no queues, or the network is gone: the rules that queue are, and nobody serves anything.
        return None
    for line in listed.splitlines():
        number, port = (int(word) for word in line.split()[:2])
        if number == queue:
            # It binds its socket to its own pid.
            if record.container is not None:
                with suppress(OSError):
                    run_inside(record, ["kill", "-KILL", str(port)])
                return port
            with suppress(ProcessLookupError):
                server = ProcessId.of(port)
                # Of a version that did not mark it, it ends with its `chaos`.
                if bears_mark(server):
                    server.signal(signal.SIGKILL)
                    return port
            return None
    return None
