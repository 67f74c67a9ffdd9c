"""Guesses what was meant by a command line that cannot be parsed, and shows how to write it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise

import click

_DIDYOUMEAN = re.compile(r"[.]? \(?Did you mean (one of: )?([^?)]*)\??\)?[.?]?$")
# Options that there are not, and by what their meaning is said.
_ELSEWHERE = {
    **dict.fromkeys(("step", "at-step", "when"), "write --at step=30"),
    **dict.fromkeys(("time", "after", "delay"), "write --at time=10s for a fault at a time"),
    **dict.fromkeys(("rank", "ranks", "gpu"), "write --on rank=1"),
    **dict.fromkeys(("node", "host"), "write --on node=1"),
    **dict.fromkeys(("target", "victim"), "write --on rank=1 or --on node=1"),
    **dict.fromkeys(("duration", "lifetime"), "write --for 10s or --for 10steps"),
    **dict.fromkeys(("fault", "kind"), "write the fault without an option: `chaos run kill-node --at step=30`"),
    **dict.fromkeys(("file", "config", "experiment"), "write the file without an option: `chaos run FILE.yaml`"),
    **dict.fromkeys(("command", "script", "cmd"), "write your command after --, as in `-- torchrun train.py`"),
}


def sentence(error: click.ClickException) -> str:
    """What click refuses, as this tool says such things, and where to read on."""
    text = error.format_message().strip().rstrip(".")
    text = _DIDYOUMEAN.sub(lambda match: f" (did you mean {match[1] or ''}{match[2]}?)", text)
    context = getattr(error, "ctx", None)
    is_answered = "write " in text or "did you mean" in text
    where = "" if context is None or is_answered else f"; `{context.command_path} --help` shows how it is written"
    return f"{text[:1].lower()}{text[1:]}{where}"


def refused(error: click.UsageError) -> str:
    """What click refuses, without its guesses."""
    return _DIDYOUMEAN.sub("", error.format_message().strip().rstrip("."))


def hint(error: click.UsageError, words: Sequence[str]) -> str | None:
    """How what `words` say is written, where that can be guessed."""
    from chaos.experiment.reading import installed_faults

    kinds = installed_faults()
    joined = next((f"{one}-{two}" for one, two in pairwise(words) if f"{one}-{two}" in kinds), None)
    if joined is not None:
        return f"did you mean {joined!r}?"
    program = next((word for word in words if word.endswith(".py") or (word not in kinds and _is_program(word))), None)
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        key = name.replace("-", "_")
        kind = next((word for word in words if word in kinds), None)
        if kind is not None and key in kinds[kind].Parameters.model_fields:
            return f"it is a parameter of {kind}, write -p {key}=VALUE"
        if name in _ELSEWHERE and program is None:
            return _ELSEWHERE[name]
    return _about_words(words) if program is None else _about_command(program, words)


def _about_command(program: str, words: Sequence[str]) -> str:
    if words and words[0] == program:
        example = f"`chaos run kill-process --at step=30 -- {program} ...`"
        return f"write the fault first, and your own command after --, as in {example}"
    return f"write -- before your own command, as in `-- {program} ...`"


def _about_words(words: Sequence[str]) -> str | None:
    for before, word in zip(["", *words], words, strict=False):
        if word in ("<", ">", "<=", ">=", "==", "!="):
            return "write a gate in quotes: --gate 'recovery_seconds < 60'"
        key, equals, _ = word.partition("=")
        if before.startswith("-") or word.startswith("-"):
            continue
        if word.isdigit() and before in ("step", "time"):
            return f"write --at {before}={word}{'s' if before == 'time' else ''}"
        if word.isdigit() and before in ("rank", "node"):
            return f"write --on {before}={word}"
        if equals and key in ("step", "time", "phase"):
            return f"write --at {word}"
        if equals and key in ("rank", "node", "rack", "stage", "replica", "role", "link"):
            return f"write --on {word}"
        if equals and key.isidentifier():
            return f"write -p {word} for a parameter of the fault"
    return None


def _is_program(word: str) -> bool:
    return not word.startswith("-") and "=" not in word and os.sep not in word and shutil.which(word) is not None
