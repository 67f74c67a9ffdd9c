"""What there is on this host that was not there at its boot: `_left_over.py UIDS FOLDER MOUNTS STATE...`, a line each.

Run with the standard library alone (-I -S), as root of the host. MOUNTS is the host's mountinfo of its boot.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MARK = b"CHAOS_RUN="
# Where a run may put files, and how their names begin.
_PLACES = ("/dev/shm", "/tmp", "/var/tmp", "/run")
_NAMES = ("chaos-*", "mecefo-*")


def processes(uids: set[int]) -> Iterator[str]:
    """Those of the users, and those that bear the mark of a run."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            is_marked = any(one.startswith(_MARK) for one in (entry / "environ").read_bytes().split(b"\0"))
            if is_marked or entry.stat().st_uid in uids:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                yield f"process {entry.name} ({state}): {command[:200] or (entry / 'comm').read_text().strip()}"


def files(folder: Path, at_boot: Path, states: list[Path]) -> Iterator[str]:
    """Files of runs where a host keeps what is its own, and runs that are still registered."""
    # In /tmp are the cluster's own folder, and those of the interpreter and the sources, where they are there outside.
    mounted = [folder, *(Path(line.split()[4]) for line in at_boot.read_text().splitlines())]
    for place in map(Path, _PLACES):
        for pattern in _NAMES:
            for path in place.glob(pattern):
                if not any(point.is_relative_to(path) for point in mounted):
                    yield f"file {path}"
    for state in states:
        yield from (f"open run {path}" for path in state.glob("*.json"))


def network() -> Iterator[str]:
    """Firewall rules, and qdiscs that the kernel does not make by itself."""
    for words, usual in ((("nft", "list", "ruleset"), ""), (("tc", "qdisc", "show"), "qdisc noqueue ")):
        if shutil.which(words[0]) is not None:
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            for line in filter(str.strip, text.splitlines()):
                if not usual or not line.startswith(usual):
                    yield f"{words[0]}: {line.strip()}"


def mounts(at_boot: Path) -> Iterator[str]:
    """Mounts that were made since."""
    now, then = (
        sorted(line.split()[4] for line in path.read_text().splitlines())
        for path in (Path("/proc/self/mountinfo"), at_boot)
    )
    for point in then:
        with suppress(ValueError):
            now.remove(point)
    yield from (f"mount {point}" for point in now)


def main() -> None:
    """Print all of it."""
    uids, folder, at_boot, *states = sys.argv[1:]
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    for line in (
        *processes({int(uid) for uid in uids.split(",")}),
        *files(Path(folder), Path(at_boot), [*map(Path, states)]),
        *network(),
        *mounts(Path(at_boot)),
    ):
        print(line)


main()
