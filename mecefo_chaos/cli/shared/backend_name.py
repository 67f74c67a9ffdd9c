"""The name of a backend as an option takes it: which ones there are is looked up when it is asked for."""

from __future__ import annotations

from typing import Any

import click


class BackendName(click.Choice[str]):
    """The name of a backend that is installed. Without the names at hand: the command line loads no plug-ins."""

    def __init__(self) -> None:
        # Not click's, which takes the names at once.
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names, the default one first."""
        from chaos.experiment.backends import backends

        return tuple(backends())


class AnyBackendName(BackendName):
    """Another name is refused when the whole experiment is judged, with all else that is wrong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word."""
        return value
