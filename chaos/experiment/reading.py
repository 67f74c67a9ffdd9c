"""What a user writes -> an `Experiment`: `load` reads a file, `from_options` a command line, `from_mapping` values.

Each makes a draft of it (`sources`) and judges that as a whole (`judge`), with every mistake at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.experiment.experiment import Experiment
from chaos.experiment.judge import Violations, judge
from chaos.experiment.sources import Draft, of_file, of_mapping, of_options
from chaos.language.validation_errors import Source
from chaos.language.yaml_lines import KeyPath

if TYPE_CHECKING:
    from chaos.experiment.sources import Registry


def load(path: Path, *, registry: Registry | None = None, strategies: Collection[str] | None = None) -> Experiment:
    """Read an experiment file.

    Raises:
        UsageError: it cannot be read or does not make sense; all mistakes at once, with their lines.
    """
    return _judged(of_file(path), registry, strategies)


def from_mapping(
    raw: Mapping[str, Any],
    lines: Mapping[KeyPath, int] | None = None,
    *,
    path: str | None = None,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> Experiment:
    """An experiment from plain values; `lines` are their places in the file called `path`.

    `registry` are the faults there are, by kind, and `strategies` the planners; by default, those that are installed.

    Raises:
        UsageError: it does not make sense; all mistakes at once.
    """
    return _judged(of_mapping(raw, lines, path), registry, strategies)


def from_options(
    subject: str | None,
    options: Mapping[str, Any],
    *,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> Experiment:
    """The experiment that `read_options` reads."""
    return read_options(subject, options, registry=registry, strategies=strategies)[0]


def read_options(
    subject: str | None,
    options: Mapping[str, Any],
    *,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
    violations: Violations | None = None,
) -> tuple[Experiment, Source]:
    """An experiment from a command line, and the source that knows the place of each part of it.

    It is of one fault, or of a file, of which `options` replace what they name.

    `options` are those that were given, by name (`gpus_per_node`, `at`); `gates` are added to the file's, and of
    `parameters`, each a text KEY=VALUE, the fault gets its own. `abort_unless` are gates as well, with abort_on_fail;
    `abort_on_fail` is of all gates. With a `profile` the subject may be None. `more_faults` are added to the fault, or
    to those of the file. `violations` is asked what else is wrong with an experiment that is going to be refused.

    Raises:
        UsageError: there is no such fault or file, or it does not make sense; all mistakes at once.
    """
    kinds = installed_faults() if registry is None else registry
    draft = of_options(subject, options, kinds)
    return _judged(draft, kinds, strategies, violations), draft.source


def _judged(
    draft: Draft,
    registry: Registry | None,
    strategies: Collection[str] | None,
    violations: Violations | None = None,
) -> Experiment:
    kinds = installed_faults() if registry is None else registry
    return judge(draft, kinds, installed_planners() if strategies is None else strategies, violations)


def installed_faults() -> Registry:
    """The faults there are, by kind."""
    from chaos.faults import registry

    return registry()


def installed_planners() -> Collection[str]:
    """The names of the strategies there are."""
    from mecefo_runtime.planners import names

    return names()
