"""The options that describe an experiment, the command after `--`, and the experiment that they describe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.shell_completion import CompletionItem

from chaos.experiment.fault_options import AND, MORE_FAULTS
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.backend_name import AnyBackendName
from mecefo_chaos.cli.shared.grouped import GroupedOption
from mecefo_chaos.cli.shared.hints import Answered
from mecefo_chaos.cli.shared.several_faults import EXAMPLE, CommandOfFaults

if TYPE_CHECKING:
    from chaos.errors import UsageError
    from chaos.experiment.experiment import Experiment
    from chaos.language.validation_errors import Source
    from mecefo_runtime.job.setting import Place


class _Number(click.ParamType[Any]):
    """A number; anything else is refused with all other errors, when the whole experiment is judged."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or else the text."""
        try:
            return self._read(value)
        except ValueError:
            return value


NUMBER = _Number("integer", int)
REAL = _Number("float", float)


class Word(click.Choice[str]):
    """One of some words, which are offered; another one is accepted here, and judged with the whole experiment."""

    def __init__(self, words: Iterable[str], *, or_files: bool = False) -> None:
        super().__init__(list(words))
        self._or_files = or_files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that begin so; else a file, if it may be one."""
        offered = super().shell_complete(ctx, param, incomplete)
        return offered or ([CompletionItem(incomplete, type="file")] if self._or_files else [])


class CommandOfAnExperiment(CommandOfFaults):
    """A subcommand with the options that describe an experiment, before its own ones.

    They are made when they are first asked for: `chaos --help` shows none of them.
    """

    _own: list[click.Parameter]
    _all: list[click.Parameter] | None

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters."""
        if self._all is None:
            self._all = [*experiment_options(), *self._own]
        return self._all

    @params.setter
    def params(self, own: list[click.Parameter]) -> None:
        self._own, self._all = own, None


class CommandOfAJob(CommandOfAnExperiment):
    """A subcommand that hands on what stands behind `--`: the command of an external job, as `command`."""

    takes_command: ClassVar[bool] = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at `--`: what is before it is ours."""
        own = args.index("--") if "--" in args else len(args)
        job_command = args[own + 1 :]
        if own < len(args):
            ctx.meta[completing.BEHIND] = True
        if own < len(args) and not job_command and not ctx.resilient_parsing:
            raise Answered(
                "there is no command after --: write the one that starts your training, as in `-- torchrun train.py`",
                ctx,
            )
        rest = super().parse_args(ctx, list(args[:own]))
        ctx.params["command"] = tuple(job_command)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Files, of a command behind `--`."""
        if ctx.meta.get(completing.BEHIND):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command at the end."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


# The headings of help. What is not in one of these is of the built-in job alone.
FAULT = "Fault (also with -- COMMAND)"
CRITERIA = "Pass criteria (also with -- COMMAND)"
ANY_JOB = "Job (also with -- COMMAND)"
OWN_JOB = "Your own job (only with -- COMMAND)"
BUILT_IN_JOB = "Built-in job (not with -- COMMAND)"
NODES = "Nodes and network (also with -- COMMAND)"


_TARGETS = ("rank=", "node=", "rack=", "stage=", "replica=", "link=", "role=coordinator", "role=launcher", "random")


def experiment_options() -> list[click.Parameter]:
    """The parameters that describe an experiment, in the order in which help shows them."""
    of_settings: dict[str, list[GroupedOption]] = {ANY_JOB: [], OWN_JOB: [], BUILT_IN_JOB: []}
    for option in _options_of_settings():
        of_settings[option.group].append(option)
    return [
        click.Argument(["subject"], metavar="[FAULT|FILE.yaml]", required=False, shell_complete=completing.KINDS),
        *_options_of_faults(),
        *_options_of_criteria(),
        *of_settings[ANY_JOB],
        _option(ANY_JOB, "--seed", type=NUMBER, help="Seed of everything random. Default: 0."),
        _option(ANY_JOB, "--name", metavar="NAME", help="Name of the experiment and of the folder of its runs."),
        *of_settings[OWN_JOB],
        *of_settings[BUILT_IN_JOB],
        *_options_of_nodes(),
    ]


def _option(group: str, *names: str, **attributes: Any) -> GroupedOption:
    return GroupedOption(names, group=group, **attributes)


def _options_of_settings() -> Iterator[GroupedOption]:
    """An option for each setting of a job that has one, as `mecefo_runtime.job` describes it."""
    from mecefo_runtime.job.command_settings import CommandSettings
    from mecefo_runtime.job.config import PRESETS, JobSettings
    from mecefo_runtime.job.setting import default_in_words, help_of, places
    from mecefo_runtime.planners import names
    from mecefo_runtime.prediction.named_devices import NAMES

    known: Mapping[str, Collection[str]] = {"model": PRESETS, "strategy": names(), "device_model": NAMES}
    built_in, of_commands = ({one.path: one for one in places(kind)} for kind in (JobSettings, CommandSettings))
    # Where a command has the same setting, the option is that of the built-in job.
    for place in {**built_in, **of_commands, **built_in}.values():
        option, is_shared = place.setting.option, place.path in built_in.keys() & of_commands.keys()
        if option is None or not option.in_run:
            continue
        text = help_of(place, known.get(option.name, ()))
        if is_shared and (default := default_in_words(CommandSettings, place.path)) is not None:
            text = f"{text.removesuffix('.')}; of a COMMAND: {default}."
        yield _option(
            ANY_JOB if is_shared else BUILT_IN_JOB if place.path in built_in else OWN_JOB,
            option.flag,
            option.name,
            type=_type_of(place, known.get(option.name, option.words)),
            metavar=option.metavar or ("TEXT" if option.name in known else None),
            help=text,
        )


def _type_of(place: Place, words: Collection[str]) -> click.ParamType[Any] | None:
    from mecefo_runtime.job.setting import alternatives

    option, kinds = place.setting.option, alternatives(place.type)
    assert option is not None
    if words:
        return Word(words, or_files="FILE" in (option.metavar or ""))
    if place.setting.unit == "path" and option.metavar is None:
        return click.Path()
    return NUMBER if int in kinds else REAL if float in kinds else None


def _options_of_faults() -> list[GroupedOption]:
    return [
        *_options_of_triggers(),
        _option(
            FAULT,
            "-p",
            "--param",
            "parameters",
            shell_complete=completing.PARAMETERS,
            multiple=True,
            metavar="KEY=VALUE",
            help="Parameter of this kind of fault, e.g. delay=50ms. Repeatable.",
        ),
        _option(
            FAULT,
            AND,
            MORE_FAULTS,
            shell_complete=completing.ONLY_KINDS,
            multiple=True,
            metavar="FAULT",
            help=f"Begin another fault; the options above are of the fault that they follow: {EXAMPLE}. Repeatable.",
        ),
        _option(
            FAULT,
            "--profile",
            shell_complete=completing.PROFILES,
            metavar="NAME[:K]",
            help="K faults in the proportions of a real cluster: llama3, failslow. Needs no FAULT.",
        ),
    ]


def _options_of_triggers() -> list[GroupedOption]:
    return [
        _option(
            FAULT,
            "--at",
            "at",
            metavar="WHEN",
            type=Word(["step=", "time=", "phase=regroup", "phase=transfer"]),
            help="Trigger: step=N[,phase=P], phase=regroup, or time=10s.",
        ),
        _option(
            FAULT,
            "--on",
            "on",
            type=Word(_TARGETS),
            metavar="TARGET",
            help="Target: rank=3, node=1+2, rack=0, stage=2, replica=0, link=2-5, role=coordinator, random[:K]. "
            "Default: drawn by the seed.",
        ),
        _option(
            FAULT, "--for", "for", metavar="DURATION", help="Duration: 30s or 10steps. Default: that of the fault."
        ),
        _option(
            FAULT,
            "--repair",
            type=Word(["none", "40steps"]),
            metavar="AFTER",
            help="Restart the affected ranks after 40steps, 10s, or none. Built-in job only. Default: 40steps.",
        ),
        _option(FAULT, "--every", metavar="INTERVAL", help="Repeat the fault every 50steps or 10s, first at --at."),
        _option(
            FAULT, "--rate", metavar="RATE", help="Repeat the fault at random times: 0.5/min or 2/100steps on average."
        ),
        _option(
            FAULT, "--count", type=NUMBER, metavar="K", help="With --every or --rate: maximum number of incidents."
        ),
        _option(
            FAULT, "--within", metavar="DURATION", help="With --every or --rate: only in the first 5min or 300steps."
        ),
        _option(
            FAULT,
            "--retrigger",
            type=Word(["once", "every-attempt"]),
            metavar="once|every-attempt|K",
            help="Attempts of the job's launcher at which the fault fires. Default: once.",
        ),
        _option(
            FAULT,
            "--then",
            type=Word(["kill-job"]),
            metavar="kill-job",
            help="Of a fault that damages stored state: end the job once that is verified, so that it is read.",
        ),
    ]


def _options_of_criteria() -> list[GroupedOption]:
    return [
        _option(
            CRITERIA,
            "--gate",
            "gates",
            shell_complete=completing.METRICS,
            multiple=True,
            metavar="EXPRESSION",
            help="Pass criterion, in quotes: 'recovery_seconds < 60'. Repeatable. `chaos gates` lists metrics.",
        ),
        _option(
            CRITERIA,
            "--abort-unless",
            shell_complete=completing.METRICS,
            multiple=True,
            metavar="EXPRESSION",
            help="Gate that ends the run as soon as it is certain to fail. Repeatable.",
        ),
        _option(CRITERIA, "--abort-on-fail", is_flag=True, default=None, help="Make every gate one of these."),
        _option(
            CRITERIA,
            "--baseline-run/--no-baseline-run",
            "--twin/--no-twin",
            "twin",
            default=None,
            help="Also run the same job without faults and compare with it. Default: on, off with -- COMMAND.",
        ),
    ]


def _options_of_nodes() -> list[GroupedOption]:
    from chaos.experiment.backends import backends

    types = {"integer": NUMBER, "number": REAL}
    return [
        _option(
            NODES,
            "--backend",
            "--engine",
            "backend",
            type=AnyBackendName(),
            help="What a node is: a process group here (local), a container (docker), a host (slurm, ssh). "
            "Default: local; slurm in an allocation of several hosts; ssh with --hosts.",
        ),
        *(
            _option(NODES, option.flag, type=types.get(option.type), metavar=option.metavar, help=option.help)
            for backend in backends().values()
            for option in backend.options.values()
        ),
        _option(
            NODES,
            "--network",
            type=Word(["auto", "namespaces", "loopback"]),
            help="Network between ranks on this machine. Default: auto, namespaces where a fault needs links.",
        ),
    ]


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
