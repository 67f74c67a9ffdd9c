"""`chaos compare`, and what `chaos run --repeat` and `--reference` share with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.fault_options import AND, MORE_FAULTS
from chaos.host.terminal import columns
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.experiment_options import CommandOfAnExperiment, read_experiment
from mecefo_chaos.cli.shared.grouped import option
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import echo, is_for_github, print_as_is, print_json
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from chaos.experiment.experiment import Experiment
    from harness.comparison.sample import RunSet, Sample
    from harness.comparison.verdicts import Against, SetVerdict


# Settings of a job that can be one strategy's alone; the third stands without its name, too: mecefo:speed.
_COUNTS = ("spares", "redundancy")
_QUALITY = "quality"
COMPARISON = "Comparison"

_COMPARE_HELP = """Compare strategies, or a run with its reference.

\b
chaos compare --strategies mecefo,checkpoint kill-node --at step=100
                              each strategy K times, in turn
chaos compare RUN REFERENCE   better, worse, or within the noise

RUN and REFERENCE are `latest`, a name, name/time, a path, or a file (summary.json, set.json).

Exit codes: 0; 1 a figure got worse by more than the noise and the tolerance; 5 undecided.
"""


@click.command(cls=CommandOfAnExperiment, help=_COMPARE_HELP)
@click.argument("reference", required=False, shell_complete=completing.RUNS)
@option(
    COMPARISON,
    "--strategies",
    shell_complete=completing.LISTED_STRATEGIES,
    metavar="NAME,NAME...",
    help="Strategies to compare: mecefo,mecefo:speed (with --quality speed),mecefo:spares=1,spare:redundancy=3,"
    "mecefo+spare,exact,ndb,mecefo-paper,oobleck-like,checkpoint,reft.",
)
@option(
    COMPARISON,
    "-K",
    "--repeat",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    metavar="K",
    help="Runs of each strategy.",
)
@option(
    COMPARISON, "--tolerance", metavar="PERCENT", help="With a reference: changes up to this are ignored. Default: 5%."
)
@option(
    COMPARISON,
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="With a reference: metric that decides. Repeatable.",
)
@option(COMPARISON, "--anyway", is_flag=True, help="With a reference: compare even different experiments.")
@option(COMPARISON, "--csv", "csv_file", type=FileToWrite(), metavar="FILE", help="Also write every run as a CSV row.")
@OUT_OPTION
@JSON_OPTION
def compare(
    subject: str | None,
    reference: str | None,
    out: Path,
    as_json: bool,
    strategies: str | None,
    repeat: int,
    tolerance: str | None,
    figures: tuple[str, ...],
    anyway: bool,
    csv_file: Path | None,
    **options: Any,
) -> int:
    """Run an experiment under each of several strategies, or compare a run with its reference."""
    if strategies is not None:
        of_a_reference = {"tolerance": tolerance, "figure": figures, "anyway": anyway, "strategy": options["strategy"]}
        refuse_options(of_a_reference, "it has no meaning with --strategies: leave it out")
        if reference is not None:
            raise UsageError(f"of one experiment: leave out {reference}")
        return compare_strategies(
            lambda its_own: read_experiment(subject, {**options, **its_own})[0],
            strategies,
            repeat,
            out,
            as_json,
            csv_file,
        )
    if subject is None or reference is None:
        raise UsageError("give --strategies and an experiment, or a run and its reference")
    refuse_options(options, "stored runs are compared, and this describes a run that is made: leave it out")
    return compare_with_reference(subject, reference, out, as_json, figures, tolerance, anyway, csv_file)


@dataclass(frozen=True, slots=True)
class Reference:
    """What runs are compared with: `judge` compares samples with it, `ratings` are by what its compute was padded."""

    judge: Callable[[Sequence[Sample]], Against]
    ratings: Mapping[str, Any] | None


def compare_strategies(
    experiment_of: Callable[[Mapping[str, Any]], Experiment],
    strategies: str,
    num_rounds: int,
    out: Path,
    as_json: bool,
    csv_file: Path | None = None,
) -> int:
    """Run the experiment under each of `strategies` in turn; returns the exit code.

    They are separated by commas, and each may have its own settings: mecefo,mecefo:speed,mecefo:spares=1.
    `experiment_of` makes the experiment with such options.
    """
    from harness.comparison.rounds import REFUSED, Rounds, contender
    from harness.comparison.verdicts import judge_comparison

    wanted = _strategies(strategies)
    contenders = [contender(label, partial(experiment_of, options)) for label, options in wanted.items()]
    if all(one.experiment is None for one in contenders):
        raise UsageError(contenders[0].refusal)
    for one in contenders:
        if one.experiment is None:
            echo(f"{one.label} is {REFUSED}: {one.refusal}")
    rounds = Rounds("comparison", contenders, num_rounds, out)
    found = rounds.run(sys.stderr)
    _write_csv(csv_file, {found.name: found.samples})
    return _report(found, judge_comparison(found), rounds.folder, as_json, None)


def repeat(
    experiment: Experiment,
    num_rounds: int,
    out: Path,
    as_json: bool,
    reference: Reference | None,
    junit: Path | None = None,
    github: bool | None = None,
) -> int:
    """Run the same experiment `num_rounds` times; returns the exit code, with a `reference` the worse of both.

    `junit` is a file for the JUnit report; `github` as of `tell_github`.
    """
    from harness.comparison.ci import github_of, junit_of
    from harness.comparison.rounds import Contender, Rounds, check_repeatable
    from harness.comparison.verdicts import judge_repetition
    from harness.store.files import write_whole

    check_repeatable(experiment)
    label = getattr(experiment.job, "strategy", experiment.job.runtime)
    rounds = Rounds(
        "repetition", [Contender(label, experiment)], num_rounds, out, None if reference is None else reference.ratings
    )
    found = rounds.run(sys.stderr)
    against = None if reference is None else reference.judge(found.samples)
    verdict = judge_repetition(found)
    exit_code = _report(found, verdict, rounds.folder, as_json, against)
    if junit is not None:
        write_whole(junit, junit_of(found, verdict, rounds.summaries))
    if is_for_github(github):
        from harness.report.github import tell

        tell(*github_of(found, verdict), os.environ, sys.stderr)
    return exit_code


def compare_with_reference(
    name: str,
    reference: str,
    out: Path,
    as_json: bool,
    figures: Sequence[str],
    tolerance: str | None,
    anyway: bool,
    csv_file: Path | None = None,
) -> int:
    """The figures of two stored runs, or sets of them, side by side; returns the exit code."""
    from harness.comparison.stored import find_samples

    samples = find_samples(out, name)
    against = prepare_reference(reference, out, figures, tolerance, anyway).judge(samples)
    if csv_file is not None:
        _write_csv(csv_file, {name: samples, reference: find_samples(out, reference)})
    if as_json:
        print_json({"run": name, "reference": reference, "baseline": reference, **to_json(against)})
    else:
        from harness.comparison.text import against_lines

        print_as_is("\n".join(against_lines(against, name, reference, columns())))
    return against.verdict.exit_code


def prepare_reference(
    name: str, out: Path, figures: Sequence[str] = (), tolerance: str | None = None, anyway: bool = False
) -> Reference:
    """The reference `name`, which is read now: a mistake shows before anything runs.

    Raises:
        UsageError: there is no such reference, figure or tolerance.
    """
    from harness.comparison.change import DEFAULT_TOLERANCE_RATIO
    from harness.comparison.figures import DECIDING
    from harness.comparison.stored import find_samples
    from harness.comparison.verdicts import judge_against

    samples = find_samples(out, name)
    deciding = [_figure(name) for name in figures] or DECIDING
    ratio = DEFAULT_TOLERANCE_RATIO if tolerance is None else _tolerance(tolerance)
    return Reference(
        judge=lambda now: judge_against(now, samples, deciding, ratio, anyway=anyway),
        ratings=next((sample.ratings for sample in samples if sample.ratings is not None), None),
    )


def single_run_against(folder: Path, exit_code: int, out: Path, as_json: bool, reference: Reference) -> int:
    """A run that has just ended beside its reference, told after its report; returns the worse of both exit codes."""
    from harness.comparison.stored import find_samples
    from harness.comparison.text import against_lines
    from harness.comparison.verdicts import worst

    against = reference.judge(find_samples(out, str(folder)))
    # Standard output has the summary of the run, and nothing else.
    echo("\n" + "\n".join(against_lines(against, "this run", "the reference", columns())), err=as_json)
    return worst([exit_code, against.verdict.exit_code])


def _against_document(against: Against | None) -> dict[str, Any]:
    """The comparison with a reference, under today's key and the earlier one."""
    return {} if against is None else dict.fromkeys(("against_reference", "against_baseline"), to_json(against))


def _report(found: RunSet, verdict: SetVerdict, folder: Path, as_json: bool, against: Against | None) -> int:
    from harness.comparison.page import write_pages
    from harness.comparison.text import against_lines, set_lines
    from harness.comparison.verdicts import worst

    write_pages(found, verdict, folder)
    if as_json:
        document = {**to_json(found), **to_json(verdict), "folder": str(folder)}
        print_json(document | _against_document(against))
    else:
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        print_as_is("\n".join(set_lines(found, verdict, folder, unicode=unicode, width=columns())))
        if against is not None:
            print_as_is("\n" + "\n".join(against_lines(against, "this", "the reference", columns())))
    return worst([verdict.exit_code, *([] if against is None else [against.verdict.exit_code])])


def _write_csv(path: Path | None, sets: Mapping[str, Sequence[Sample]]) -> None:
    from harness.comparison.csv_table import csv_of
    from harness.store.files import write_whole

    if path is not None:
        write_whole(path, csv_of(sets))


def _strategies(text: str) -> dict[str, Mapping[str, Any]]:
    """The options of each strategy, by what to call it."""
    from mecefo_runtime.planners import names

    wanted: dict[str, Mapping[str, Any]] = {}
    for label in (part.strip() for part in text.split(",")):
        name, *settings = label.split(":")
        if name not in names():
            message = f"there is no strategy {shown(name)}: there are {', '.join(names())}"
            raise UsageError(message, key="--strategies", suggestion=nearest(name, names()))
        if label in wanted:
            raise UsageError("each of them once", key="--strategies")
        options = [("strategy", name), *(_setting(name, label, text) for text in settings)]
        if len(dict(options)) < len(options):
            raise UsageError(f"{shown(label)}: each setting once", key="--strategies")
        wanted[label] = dict(options)
    return wanted


def _setting(name: str, label: str, text: str) -> tuple[str, int | str]:
    from mecefo_runtime.job.config import QUALITIES
    from mecefo_runtime.planners import has_quality, names

    key, sign, value = text.partition("=")
    if key == _QUALITY or (not sign and key in QUALITIES):
        if not has_quality(name):
            having = " and ".join(one for one in names() if has_quality(one))
            raise UsageError(f"{shown(label)}: {name} has no quality; {having} have one", key="--strategies")
        return _QUALITY, value if sign else key
    if key not in _COUNTS:
        message = (
            f"{shown(label)}: the settings of a strategy are {', '.join(_COUNTS)} and quality, as in mecefo:spares=1 "
            "and mecefo:speed"
        )
        raise UsageError(message, key="--strategies", suggestion=nearest(key, (*_COUNTS, _QUALITY, *QUALITIES)))
    if not value.isascii() or not value.isdigit():
        raise UsageError(f"{shown(label)}: write a whole number: {key}=1", key="--strategies")
    return key, int(value)


def _figure(name: str) -> str:
    from harness.judging.metrics import METRICS, find
    from harness.judging.metrics import nearest as nearest_figure

    metric = find(name)
    if metric is None:
        raise UsageError(
            f"there is no figure {shown(name)}", key="--figure", suggestion=nearest_figure(name, list(METRICS))
        )
    if metric.better is None:
        raise UsageError(f"{metric.name} is neither better nor worse when it changes", key="--figure")
    return metric.name


def _tolerance(text: str) -> float:
    number = text.strip().removesuffix("%")
    is_percent = text.strip().endswith("%")
    try:
        ratio = float(number) / (100 if is_percent else 1)
    except ValueError:
        ratio = -1.0
    # A bare number above 1 was meant as percent: taken as it is, nothing would ever be worse.
    if not 0 <= ratio < float("inf") or (ratio > 1 and not is_percent):
        raise UsageError(f"{shown(text)} is no tolerance: write 5%, or 0.05", key="--tolerance")
    return ratio


def refuse_options(options: Mapping[str, Any], why: str) -> None:
    """Refuse options of an experiment where none is run.

    Raises:
        UsageError: there is one.
    """
    for name, value in options.items():
        if value not in (None, (), False):
            raise UsageError(why, key=AND if name == MORE_FAULTS else f"--{name.replace('_', '-')}")
