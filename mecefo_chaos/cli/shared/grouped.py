"""Help in groups: options under headings that say what they are of, subcommands under what they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import click

OTHER = "Other options"
F = TypeVar("F", bound=Callable[..., Any] | click.Command)


class GroupedOption(click.Option):
    """An option that help shows under the heading `group`."""

    def __init__(self, *args: Any, group: str = OTHER, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


def option(group: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """As `click.option`, of a `group`."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


class GroupedCommand(click.Command):
    """A subcommand whose help shows options by group, in the order in which the groups first occur.

    What a heading has in brackets is about commands behind `--`: it is left out where there cannot be one.
    """

    takes_command: ClassVar[bool] = False

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each group, `OTHER` last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                groups.setdefault(getattr(parameter, "group", OTHER), []).append(record)
        for heading in sorted(groups, key=lambda group: group == OTHER):
            with formatter.section(heading if self.takes_command else heading.partition(" (")[0]):
                formatter.write_dl(groups[heading], col_max=26)


class GroupedGroup(click.Group):
    """A command whose help shows its subcommands under headings: `sections` has a line about each."""

    sections: ClassVar[Mapping[str, Mapping[str, str]]]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each heading."""
        width = max(map(len, self.commands))
        for heading, lines in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", line) for name, line in lines.items()])
