"""All checks of `chaos doctor`: those of the machine of the nodes, then those of each backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos.experiment.backends import backends, broken_backends, settings_model
from chaos.plugins import DEFAULT_BACKEND
from harness.backends.base import kind_of
from harness.doctor.finding import Check, Finding


def examine(out: Path, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """One finding after the other as it is known; `out` is for files, `settings` are those of backends, by their key.

    Raises:
        pydantic.ValidationError: a setting makes no sense.
    """
    chosen = settings_model().model_validate(settings)
    kinds = [kind_of(one) for one in backends().values()]
    machine = next(kind for kind in kinds if kind.name == DEFAULT_BACKEND).machine()
    if (yield from machine.findings(out)):
        for kind in kinds:
            yield from kind.findings(kind.settings_among(chosen))
    for plugin, reason in broken_backends().items():
        yield Check("backend plug-in", "a backend of another package").wrong(
            f"{plugin} {reason}", "install the package again, or remove it: it is left out"
        )
