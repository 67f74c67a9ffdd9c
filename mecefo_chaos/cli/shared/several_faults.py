"""Several faults on one command line: `--and FAULT` begins another one, and the options behind it are of that fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import click

from chaos.errors import UsageError
from chaos.experiment.fault_options import AND, MORE_FAULTS, FaultOptions
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.grouped import GroupedCommand
from mecefo_chaos.cli.shared.hints import Answered, hint, refused, swallowed

EXAMPLE = f"{AND} set-nan --at step=30"
# Two of these are two faults, or a slip; of other options the last one counts, as usual.
_ONCE_FOR_A_FAULT = ("at", "on")


class CommandOfFaults(GroupedCommand):
    """A subcommand that describes an experiment of one fault or several.

    The words are split at `--and`, and the same parser parses each part. Options of a fault in a later part become one
    of `more_faults`; all other options are of the experiment, in whichever part they stand.
    """

    takes_command: ClassVar[bool] = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the parts; see the class."""
        first, *others = parts(args)
        ctx.meta[completing.BEFORE] = tuple(others[-1] if others else first)
        words, faults = list(first), []
        try:
            self._check_part(ctx, first)
            for part in others:
                fault, rest = self._fault(ctx, part)
                faults += [fault] if fault is not None else []
                words += rest
            unused = super().parse_args(ctx, words)
        except click.UsageError as error:
            is_split = bool(ctx.meta.get(completing.BEHIND))
            if meant := hint(error, args, takes_command=self.takes_command, is_split=is_split):
                raise Answered(f"{refused(error)}: {meant}", ctx) from error
            raise
        ctx.params[MORE_FAULTS] = tuple(faults)
        return unused

    def _check_part(self, ctx: click.Context, part: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """(values of the options, other words) of one part.

        Raises:
            UsageError: an option is given twice that a fault has once.
        """
        options = {name: one for one in self.get_params(ctx) if isinstance(one, click.Option) for name in one.opts}
        if not ctx.resilient_parsing and (pair := swallowed(part, options)) is not None:
            name, following = pair
            raise UsageError(f"has no value: the word behind it is the option {following}", key=name)
        values, extra, order = self.make_parser(ctx).parse_args(list(part))
        for name in _ONCE_FOR_A_FAULT:
            if sum(parameter.name == name for parameter in order) > 1:
                raise UsageError(
                    f"is given twice, but a fault has one: another fault begins with {AND}, as in `{EXAMPLE}`",
                    key=f"--{name}",
                )
        arguments = [values.get(one.name or "") for one in self.get_params(ctx) if isinstance(one, click.Argument)]
        return values, [*(one for one in arguments if isinstance(one, str)), *extra]

    def _fault(self, ctx: click.Context, part: Sequence[str]) -> tuple[FaultOptions | None, list[str]]:
        """The fault that a part after `--and` describes, and the options of the experiment in that part, as words."""
        from chaos.experiment.terms import is_of_a_fault

        values, words = self._check_part(ctx, part)
        if len(words) > 1 and not ctx.resilient_parsing:
            unexpected = " ".join(words[1:])
            several = "arguments" if len(words) > 2 else "argument"
            raise click.UsageError(f"got unexpected extra {several} ({unexpected}) after {AND} {words[0]}", ctx)
        if not words:
            if ctx.resilient_parsing:
                return None, []
            raise UsageError(f"which fault? Write it there, as in `{EXAMPLE}`", key=AND)
        options: dict[str, Any] = {}
        rest: list[str] = []
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Option) or parameter.name is None or parameter.name not in values:
                continue
            value = values[parameter.name]
            if is_of_a_fault(parameter.name):
                options[parameter.name] = parameter.process_value(ctx, value)
            else:
                rest += _written(parameter, value)
        return FaultOptions(words[0], options), rest


def parts(words: Sequence[str]) -> list[list[str]]:
    """`words` split at each `--and`, or `--and=FAULT`; at least one part."""
    split: list[list[str]] = [[]]
    for word in words:
        name, equals, value = word.partition("=")
        if name == AND:
            split.append([value] if equals else [])
        else:
            split[-1].append(word)
    return split


def _written(option: click.Option, value: Any) -> list[str]:
    """The words that give `option` the value, or each of the values, that its parser read."""
    name = max(option.opts, key=len)
    if option.is_flag:
        return [name if value == option.flag_value else max(option.secondary_opts, key=len, default=name)]
    return [f"{name}={one}" for one in (value if option.multiple else [value])]
