"""Reads exceptions from the tracebacks that Python prints: in a log, and in the message of an exception.

An exception that another process raised (a worker of a DataLoader, a process of `torch.multiprocessing.spawn`, one of
a pool) comes as text in the message of the one that is raised for it. Nothing but the standard library: a rank imports
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

_HEADER = "Traceback (most recent call last):"
_ORIGINAL = f"Original {_HEADER}"
_GROUP_HEADER = f"Exception Group {_HEADER}"
# CPython's `traceback` module (3.8-3.14).
_LINKS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
# torch.multiprocessing.spawn (2.11-2.13), before the traceback of the process that failed.
_OF_SPAWNED = re.compile(r"-- Process \d+ terminated with the following (?:error|exception):")
_QUOTES = '"""'
# What torch puts before each line of a rank's traceback, torchrun's --tee and mpirun's --tag-output before all that
# ranks print. The rank is told by the first and the last.
PREFIX = re.compile(r"^(?:\[(?P<of>rank|default)?(?P<rank>\d+)\]:\s?|\[\d+,(?P<mpi>\d+)\]<std(?:err|out)>:\s?)")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
# A SyntaxError in the script itself has no header, and no function.
_SYNTAX = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)$')
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::\s?(?P<message>.*)|$)")
_GROUP_PREFIX = re.compile(r"^(?P<indent>\s*)(?:\| |\+ (?=Exception Group))")
_GROUP_RULER = re.compile(r"^\s*\+[-+]+ \d+ -+$")
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "/chaos/external/", "/chaos/in_process/")


@dataclass(frozen=True, slots=True)
class PrintedException:
    """An exception, the place in the script where it came up, and what led to it: `causes`, the root last.

    `link` says what it is to the one before it: its `cause` (`raise from`), its `context` (raised while it was
    handled), or `remote` (raised in another process, or one of a group). `rank` is the rank that printed it, as far as
    the prefix of its lines says so.
    """

    exception: str
    message: str
    file: str | None = None
    line: int | None = None
    link: str | None = None
    rank: int | None = None
    causes: tuple[PrintedException, ...] = ()


def is_of_script(file: str) -> bool:
    """Whether a file is the script's own, and none of Python's, of an installed package's or ours."""
    return not any(part in file for part in _LIBRARIES)


def exceptions_in(lines: Iterable[str]) -> list[PrintedException]:
    """The exceptions in `lines`, in the order in which the first line of their message stands there.

    Lines of ranks that print at the same time are told apart by their prefixes.
    """
    readers: dict[str, _Reader] = {}
    order: list[_Chain] = []
    for line in lines:
        prefix = PREFIX.match(line)
        key = "" if prefix is None else prefix[0].strip()
        if key not in readers:
            readers[key] = _Reader(_rank_of(prefix), order)
        readers[key].feed(line if prefix is None else line[prefix.end() :])
    return [chain.told() for chain in order]


def _rank_of(prefix: re.Match[str] | None) -> int | None:
    if prefix is None:
        return None
    if prefix["mpi"] is not None:
        return int(prefix["mpi"])
    # `[default0]` and `[0]` count within a node.
    return int(prefix["rank"]) if prefix["of"] == "rank" else None


@dataclass(slots=True)
class _Chain:
    """An exception with those that led to it, the newest last; `inner` is what its message has of other processes."""

    found: list[PrintedException] = field(default_factory=list)
    inner: _Chain | None = None

    def told(self) -> PrintedException:
        outer, link = self.found[-1], self.found[-1].link
        causes: list[PrintedException] = []
        for one in reversed(self.found[:-1]):
            causes.append(replace(one, link=link))
            link = one.link
        if self.inner is not None and self.inner.found:
            told = self.inner.told()
            causes += [replace(told, link="remote", causes=()), *told.causes]
        return replace(outer, link=None, causes=tuple(causes))


class _Reader:
    """Reads what one process prints, line by line, into `order`."""

    def __init__(self, rank: int | None, order: list[_Chain]) -> None:
        self._rank = rank
        self._order = order
        self._chain: _Chain | None = None
        self._link: str | None = None
        self._is_inside = self._is_inner = self._is_announced = False
        self._place: tuple[str, int] | None = None

    def feed(self, line: str) -> None:
        """Process the next line."""
        if _GROUP_RULER.match(line):
            self._is_announced = True
            return
        if (group := _GROUP_PREFIX.match(line)) is not None:
            line = line[group.end() :]
        text = line.strip()
        if text in _LINKS:
            self._link = _LINKS[text]
        elif line.startswith((_HEADER, _ORIGINAL, _GROUP_HEADER)):
            self._begin(is_remote=line.startswith(_ORIGINAL) or self._is_announced)
        elif text.startswith(_QUOTES):
            # A pool's: what another process printed stands between two of these.
            self._is_announced, self._is_inner = not self._is_inner, False
        elif _OF_SPAWNED.match(text):
            self._is_announced = True
        elif not self._is_inside and (syntax := _SYNTAX.match(line)) is not None:
            self._begin(is_remote=False)
            self._place = syntax["file"], int(syntax["line"])
        elif self._is_inside and (frame := _FRAME.match(line)) is not None:
            if is_of_script(frame["file"]):
                self._place = frame["file"], int(frame["line"])
        elif self._is_inside and (found := _EXCEPTION.match(line)) is not None:
            self._take(found["name"], found["message"] or "")

    def _begin(self, *, is_remote: bool) -> None:
        self._is_inside, self._place, self._is_announced = True, None, False
        if is_remote and self._chain is not None:
            self._is_inner, self._chain.inner, self._link = True, _Chain(), None
        elif self._link is None:
            self._is_inner, self._chain = False, None

    def _take(self, name: str, message: str) -> None:
        self._is_inside = False
        file, line = self._place or (None, None)
        told = PrintedException(name, message.strip(), file, line, self._link, self._rank)
        self._link = None
        if self._chain is None:
            self._chain = _Chain()
            self._order.append(self._chain)
        if self._is_inner and self._chain.inner is not None:
            self._chain.inner.found.append(told)
        else:
            self._chain.found.append(told)
