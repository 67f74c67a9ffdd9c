"""Completions for the word that is being typed: quickly, without torch, and none on errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Find = Callable[[click.Context], Iterable[str]]
FindFor = Callable[[click.Context, str], Iterable[str]]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MAX_OFFERED_RUNS = 50
BEFORE = "chaos.before"
"""In a context's `meta`: the words about one fault, up to the one that is being typed or `--`."""
BEHIND = "chaos.behind"
"""In a context's `meta`: the word stands behind `--`, and is of a command of the user's own."""


def found_by(find: Find, *, or_files: bool = False) -> Complete:
    """Offers what `find` finds; where none of that fits and `or_files`, files."""
    return found_for(lambda context, typed: find(context), or_files=or_files)


def found_for(find: FindFor, *, or_files: bool = False) -> Complete:
    """The same, of a `find` that also looks at what is typed of the word."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if context.meta.get(BEHIND):
            return [CompletionItem(incomplete, type="file")]
        try:
            offered = [word for word in find(context, incomplete) if word.startswith(incomplete)]
        except Exception:
            # A message would be written into the line that is being typed.
            offered = []
        if not offered and or_files:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in offered]

    return complete


def _kinds(context: click.Context) -> Sequence[str]:
    from chaos.faults import registry

    return tuple(registry())


def _listed_strategies(context: click.Context, typed: str) -> Iterable[str]:
    """Strategies behind those that are typed already, and the qualities of one that ends in a colon."""
    from mecefo_runtime.job.config import QUALITIES
    from mecefo_runtime.planners import has_quality, names

    before, comma, last = typed.rpartition(",")
    name, colon, _ = last.partition(":")
    offered = (f"{name}:{quality}" for quality in QUALITIES if has_quality(name)) if colon else names()
    return (f"{before}{comma}{word}" for word in offered)


def _profiles(context: click.Context) -> Iterable[str]:
    from chaos.experiment.profile import PROFILES

    return PROFILES


def _metrics(context: click.Context) -> Iterable[str]:
    from harness.judging.metrics import METRICS
    from harness.judging.series import SERIES

    return (*METRICS, *SERIES)


def _runs(context: click.Context) -> Iterable[str]:
    from harness.store.runs import LATEST, references
    from mecefo_chaos.cli.shared.options import DEFAULT_OUT

    found = references(Path(context.params.get("out") or DEFAULT_OUT))[:MAX_OFFERED_RUNS]
    return (*([LATEST] if found else []), *found)


def _parameters(context: click.Context) -> Iterable[str]:
    from chaos.faults import registry

    # Of a line whose last option still lacks its value click has parsed no argument.
    faults = [fault for word in context.meta.get(BEFORE, ()) if (fault := registry().get(word)) is not None]
    return [f"{name}=" for fault in faults[:1] for name in fault.Parameters.model_fields]


KINDS = found_by(_kinds, or_files=True)
ONLY_KINDS = found_by(_kinds)
LISTED_STRATEGIES = found_for(_listed_strategies)
PROFILES = found_by(_profiles)
METRICS = found_by(_metrics)
RUNS = found_by(_runs, or_files=True)
PARAMETERS = found_by(_parameters)
