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
from typing import Any, ClassVar

from chaos.errors import HealError
from chaos.host.containers import is_container_running, run_in_container
from mecefo_runtime.system.process import ProcessId

TIMEOUT_SECONDS = 30.0
# Since 2001, and until 2286.
_DIGITS_OF_NANOSECONDS = 19
_QUEUES = "/proc/net/netfilter/nfnetlink_queue"
# Where Debian and others put what users seldom call.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class FirewallRules:
    """All rules that one incident adds in one namespace, and the process that handles the packets they queue.

    The namespace is that of a `container` of the `engine`, or one that a process, the `holder`, has open.
    """

    how: ClassVar[str] = "namespace-firewall"

    @classmethod
    def remove(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the rules with the record's comment, and end what serves their queue."""
        comment, queue = str(record["comment"]), record.get("queue")
        evidence: dict[str, Any] = {"comment": comment, "at": record["at"]}
        if not _is_there(record):
            return {**evidence, "removed": 0, "gone": "the network is gone with the process that held it"}
        try:
            # Another one may be at it, such as a watchdog: what it deletes between our look and our deletion is gone.
            for _ in range(2):
                removed = _delete(record, comment)
                left = _rules(record, comment)
                if not left:
                    break
            server = None if queue is None else _end_server(record, int(queue))
        except (OSError, subprocess.SubprocessError) as error:
            if not _is_there(record):
                return {**evidence, "removed": 0, "gone": "the network is gone with the process that held it"}
            raise HealError(f"the rules {comment} at {record['at']} cannot be removed: {error}") from error
        if left:
            raise HealError(f"{len(left)} rules {comment} at {record['at']} are still there: {'; '.join(left)}")
        return {**evidence, "removed": removed, **({} if server is None else {"ended": server})}


def _is_there(record: Mapping[str, Any]) -> bool:
    """Whether the namespace can still be there."""
    if "container" in record:
        return is_container_running(str(record["engine"]), str(record["container"]))
    return holder_of(record).is_running()


def holder_of(record: Mapping[str, Any]) -> ProcessId:
    """The process that holds the record's namespace."""
    return ProcessId(int(record["holder"]["pid"]), int(record["holder"]["start_ticks"]))


def inside(record: Mapping[str, Any], command: Sequence[str]) -> list[str]:
    """`command` as it is run in the record's namespace, from outside.

    Raises:
        FileNotFoundError: a program is not installed.
    """
    pid = record["holder"]["pid"]
    where = [f"--user=/proc/{pid}/ns/user", f"--net=/proc/{pid}/fd/{record['descriptor']}"]
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


def run_inside(record: Mapping[str, Any], command: Sequence[str], text: str = "") -> str:
    """Run `command` in the record's namespace, with `text` as its input; returns what it prints.

    Raises:
        OSError: it failed, and what it said.
    """
    if "container" in record:
        return run_in_container(str(record["engine"]), str(record["container"]), command, text)
    done = subprocess.run(
        inside(record, command),
        input=text,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _rules(record: Mapping[str, Any], comment: str) -> list[str]:
    listed = run_inside(record, ["iptables", "--list-rules"]).splitlines()
    return [line for line in listed if line.startswith("-A ") and comment in shlex.split(line)]


def _delete(record: Mapping[str, Any], comment: str) -> int:
    """Delete what has the comment; returns how many that were."""
    found = _rules(record, comment)
    if found:
        words = [shlex.split(line)[1:] for line in found]
        try:
            run_inside(record, ["iptables-restore", "--noflush"], restore_text("-D", words))
        except OSError:
            # All or nothing: if one of them went meanwhile, the caller finds the others still there, and comes again.
            return 0
    return len(found)


def _end_server(record: Mapping[str, Any], queue: int) -> int | None:
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
            if "container" in record:
                with suppress(OSError):
                    run_inside(record, ["kill", "-KILL", str(port)])
                return port
            with suppress(ProcessLookupError):
                ProcessId.of(port).signal(signal.SIGKILL)
            return port
    return None
