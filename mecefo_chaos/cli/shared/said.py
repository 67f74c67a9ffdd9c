"""The experiment that a command line describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.errors import UsageError
    from chaos.experiment.experiment import Experiment
    from chaos.language.validation_errors import Source


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `options` that were given."""
    return {key: value for key, value in options.items() if value not in (None, ())}


def read_experiment(subject: str | None, options: Mapping[str, Any]) -> tuple[Experiment, Source]:
    """The experiment of a fault or file and some options, and where each part of it was said.

    Raises:
        UsageError: it does not make sense; all errors at once.
    """
    from chaos.experiment.reading import read_options

    return read_options(subject, given(options), violations=_violations)


def _violations(experiment: Experiment, is_sound: Callable[..., bool]) -> list[UsageError]:
    from harness.run.preparation import violations

    return violations(experiment, is_sound)
