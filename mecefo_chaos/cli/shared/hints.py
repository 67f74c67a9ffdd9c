"""Guesses what was meant by a command line that cannot be parsed, and shows how to write it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from chaos.faults.base import Fault

_DIDYOUMEAN = re.compile(r"[.]? \(?Did you mean (one of: )?([^?)]*)\??\)?[.?]?$")
# Options that do not exist, and the option to use.
_TARGETS = {"rank": "rank", "ranks": "rank", "gpu": "rank", "node": "node", "host": "node"}
_OPTIONS = {
    **dict.fromkeys(("step", "at-step", "when", "time", "after", "delay"), "--at"),
    **dict.fromkeys((*_TARGETS, "target", "victim"), "--on"),
    **dict.fromkeys(("duration", "lifetime"), "--for"),
}
# Words that may stand before a number, and the option that takes both.
_COUNTED = {"step": "--at", "time": "--at", "rank": "--on", "node": "--on"}
_OF_A_FILE = (".yaml", ".yml")
_OTHERWISE = {
    **dict.fromkeys(("fault", "kind"), "write the fault without an option: `chaos run kill-node --at step=30`"),
    **dict.fromkeys(("file", "config", "experiment"), "write the file without an option: `chaos run FILE.yaml`"),
    **dict.fromkeys(("command", "script", "cmd"), "write your command after --, as in `-- torchrun train.py`"),
}


class Answered(click.UsageError):
    """One whose message says itself how it is written."""


def sentence(error: click.ClickException) -> str:
    """What click refuses, as this tool says such things, and where to read on."""
    text = error.format_message().strip().rstrip(".")
    text, guesses = _DIDYOUMEAN.subn(lambda match: f" (did you mean {match[1] or ''}{match[2]}?)", text)
    context = getattr(error, "ctx", None)
    is_answered = guesses > 0 or isinstance(error, Answered)
    where = "" if context is None or is_answered else f"; `{context.command_path} --help` shows how it is written"
    return f"{text[:1].lower()}{text[1:]}{where}"


def refused(error: click.UsageError) -> str:
    """What click refuses, without its guesses."""
    return _DIDYOUMEAN.sub("", error.format_message().strip().rstrip("."))


def hint(error: click.UsageError, words: Sequence[str], *, takes_command: bool, is_split: bool) -> str | None:
    """How what `words` say is written, where that can be guessed.

    `takes_command`: a command of the user's may stand behind `--`; `is_split`: one stands there, after `words`.
    """
    from chaos.experiment.reading import installed_faults

    kinds = installed_faults()
    joined = next((f"{one}-{two}" for one, two in pairwise(words) if f"{one}-{two}" in kinds), None)
    if joined is not None:
        return f"did you mean {joined!r}?"
    program = next(
        (word for word, after in zip_longest(words, words[1:]) if _starts_a_command(word, after, kinds)), None
    )
    if isinstance(error, click.BadParameter):
        name = error.param.opts[0] if isinstance(error.param, click.Option) else ""
        if program is None or (name, program) not in pairwise(words):
            return None
        return f"{name} takes {program!r} for its value: give it another one, or leave {name} out"
    if program is not None and is_split:
        return f"the command after -- is not begun before it: leave {program!r} out"
    if program is not None and takes_command:
        return _about_command(program, is_first=not any(word in kinds or word.endswith(_OF_A_FILE) for word in words))
    meant = _about_option(error.option_name, words, kinds, is_split) if isinstance(error, click.NoSuchOption) else None
    return meant or _about_words(words)


def swallowed(words: Sequence[str], options: Mapping[str, click.Option]) -> tuple[str, str] | None:
    """(option, option behind it) where an option without a value would take the following option for its value."""
    for name, following in pairwise(words):
        option = options.get(name)
        if option is not None and not option.is_flag and following.partition("=")[0] in options:
            return name, following
    return None


def _about_option(name: str, words: Sequence[str], kinds: Mapping[str, type[Fault[Any]]], is_split: bool) -> str | None:
    """What to write in place of the option `name`, which there is not."""
    name = name.lstrip("-")
    key = name.replace("-", "_")
    kind = next((word for word in words if word in kinds), None)
    if kind is not None and key in kinds[kind].Parameters.model_fields:
        return f"it is a parameter of {kind}, write -p {key}=VALUE"
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    option = _OPTIONS.get(name)
    if option is None:
        return None
    if option in words:
        return f"{option} says it already: leave --{name} out"
    if option == "--at":
        return "write --at time=10s" if name in ("time", "after", "delay") else "write --at step=30"
    if option == "--on":
        return f"write --on {_target(_TARGETS.get(name), kinds.get(kind or ''))}"
    return _about_duration(name, kinds.get(kind or ""), is_split)


def _target(scope: str | None, kind: type[Fault[Any]] | None) -> str:
    if kind is not None and kind.scope == "link":
        return "link=0-2"
    return f"{scope or 'rank'}=1"


def _about_duration(name: str, kind: type[Fault[Any]] | None, is_split: bool) -> str:
    if kind is None or kind.has_lifetime:
        return "write --for 10s or --for 10steps"
    if not kind.is_loss:
        return f"{kind.kind} is over at once: leave --{name} out"
    if is_split:
        return f"{kind.kind} lasts until the launcher of your command restarts the ranks: leave --{name} out"
    return "write --repair 10s or --repair 10steps"


def _about_command(program: str, *, is_first: bool) -> str:
    command = f"torchrun {program}" if program.endswith(".py") else f"{program} ..."
    if is_first:
        example = f"`chaos run kill-process --at step=30 -- {command}`"
        return f"write the fault first, and your own command after --, as in {example}"
    return f"write -- before your own command, as in `-- {command}`"


def _about_words(words: Sequence[str]) -> str | None:
    for before, word in zip(["", *words], words, strict=False):
        if word in ("<", ">", "<=", ">=", "==", "!="):
            return "write a gate in quotes: --gate 'recovery_seconds < 60'"
        key, equals, _ = word.partition("=")
        if before.startswith("-") or word.startswith("-"):
            continue
        if word.isdigit() and before in _COUNTED:
            unit = "s" if before == "time" else ""
            return f"write {_COUNTED[before]} {before}={word}{unit}"
        if equals and key in ("step", "time", "phase"):
            return f"write --at {word}"
        if equals and key in ("rank", "node", "rack", "stage", "replica", "role", "link"):
            return f"write --on {word}"
        if equals and key.isidentifier():
            return f"write -p {word} for a parameter of the fault"
    return None


def _starts_a_command(word: str, after: str | None, kinds: Mapping[str, object]) -> bool:
    """Whether `word` is a script or a program, and so the beginning of a command of the user's.

    A number `after` one that is also a trigger or a target makes it that: `time 10`, `node 1`.
    """
    is_a_place = word in _COUNTED and (after or "").isdigit()
    if word.startswith("-") or word in kinds or is_a_place:
        return False
    return word.endswith(".py") or ("=" not in word and os.sep not in word and shutil.which(word) is not None)
