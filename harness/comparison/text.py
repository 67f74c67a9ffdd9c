"""Sets of runs, and runs beside a reference, on a terminal: within its width, and nothing by colour alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.host.terminal import MAX_TEXT_COLUMNS, cells, pad, wrap
from harness.analysis.words import count, one_line
from harness.comparison.change import Change, is_of_single_runs
from harness.comparison.figures import HEADLINE
from harness.comparison.rounds import REFUSED
from harness.comparison.sample import RunSet, Sample, overlapped_words
from harness.comparison.set_reasons import what_ran
from harness.comparison.verdicts import Against, SetVerdict, outcome_against, runs_done
from harness.judging.caveats import MUCH_OVERRUN
from harness.judging.metrics import METRICS
from harness.report.wording import shows_goodput
from mecefo_runtime.planners import stops_on_loss

_WIDTH = 80
_BAR_CELLS = 24
_LABEL_CELLS = 12
# The figures of a row, beside its label.
_FIGURE_CELLS = 2 + 12 + 3 + 24 + 4


def set_lines(
    found: RunSet, verdict: SetVerdict, folder: Path, *, unicode: bool = True, width: int = _WIDTH
) -> Iterator[str]:
    """The report of a set that lies in `folder`, within `width` cells but for the folder."""
    for line in _set_lines(found, verdict, unicode, min(width, MAX_TEXT_COLUMNS)):
        yield from wrap(line, min(width, MAX_TEXT_COLUMNS))
    yield f"all of it: {folder}"


def _set_lines(found: RunSet, verdict: SetVerdict, unicode: bool, width: int) -> Iterator[str]:
    many = f"{len(found.samples)} strategies, " if found.kind == "comparison" else ""
    each = " each" if many else ""
    yield f"{one_line(found.name)}: {headline(found, verdict).upper()}; {many}{count(found.num_rounds, 'run')}{each}"
    for reason in verdict.reasons:
        yield from _item(reason, width)
    yield ""
    label_cells = max([_LABEL_CELLS, *(cells(sample.label) for sample in found.samples)])
    if label_cells + _FIGURE_CELLS > width:
        # A long name stands on its own line.
        label_cells = _LABEL_CELLS
    yield f"{'median':>{label_cells + 14}}   {'least to greatest':<24} n"
    walls = [seconds for sample in found.samples for seconds in sample.values("wall_clock_seconds")]
    for name, words in HEADLINE.items():
        if name == "goodput_ratio" and not shows_goodput(max(walls, default=None)):
            continue
        if any(sample.values(name) for sample in found.samples):
            yield words
            yield from _bars(found.samples, name, label_cells, unicode, width)
    yield ""
    yield "runs"
    for sample in found.samples:
        yield from _runs(found, sample)
    yield ""
    for note in notes(found):
        yield from _item(note, width)


def headline(found: RunSet, verdict: SetVerdict) -> str:
    """The outcome of a set in a word or two; a comparison is not passed, but complete."""
    word = "complete" if found.kind == "comparison" and verdict.verdict == "pass" else verdict.verdict
    return f"{word}, partial" if found.status == "partial" else word


def notes(found: RunSet) -> list[str]:
    """The caveats of a set."""
    said = []
    ran = [sample.label for sample in found.samples if any(run.is_done for run in sample.runs)]
    if found.kind == "comparison" and found.status == "partial":
        done = what_ran(found.num_rounds, runs_done(found))
        said.append(f"Not every round was run: {done}; with the same seed and the same faults.")
    elif found.kind == "comparison" and ran:
        said.append(f"Every round ran {', '.join(ran)} in turn, with the same seed and the same faults.")
    restarting = [label for label in ran if stops_on_loss(label)]
    for label in restarting:
        experiment = next(sample.experiment for sample in found.samples if sample.label == label)
        said.append(
            f"{label} ends all ranks and restarts them from {_goes_back_to(experiment)}. They are "
            "forked from a process that has torch imported: with an external launcher a restart takes longer."
        )
    if restarting:
        said.append(
            f"The throughput drop of {' and '.join(restarting)} during the fault is near 100%, because it ends "
            "when the job is back at its step; the whole run's drop and the goodput show the total cost."
        )
    ratio = next((sample.machine.get("dilation") for sample in found.samples if sample.machine), None)
    if isinstance(ratio, int | float) and ratio > 1:
        said.append(f"Time dilation {ratio:g} was active: compare these figures only with each other.")
    overruns = [run.dilation_overrun_ratio or 0.0 for sample in found.samples for run in sample.runs]
    if (overrun := max(overruns, default=0.0)) > MUCH_OVERRUN:
        said.append(
            f"The machine was too busy for the dilation: compute took up to {overrun:.0%} longer than it should have, "
            "and the figures show it. Repeat it on a quieter machine, or with a larger --dilation."
        )
    said += [words for sample in found.samples if (words := overlapped_words(sample, f"of {sample.label}"))]
    return said


def _goes_back_to(experiment: Mapping[str, Any]) -> str:
    job = experiment.get("job") or {}
    checkpoint, snapshots = job.get("checkpoint") or {}, job.get("snapshots") or {}
    found = []
    if snapshots:
        every = snapshots.get("every", 1)
        often = {1: "every step", "auto": "at the cheapest interval"}.get(every, f"every {every} steps")
        found.append(f"snapshots in the nodes' memory ({often}, protection {snapshots.get('protection')})")
    if checkpoint:
        found.append(f"checkpoints (every {checkpoint.get('every_steps')} steps)")
    return f"the newest of its {' and '.join(found) or 'checkpoints'}"


def against_lines(found: Against, what: str, reference: str, width: int = _WIDTH) -> Iterator[str]:
    """The report of a comparison with a reference, within `width` cells."""
    for line in _against_lines(found, what, reference, min(width, MAX_TEXT_COLUMNS)):
        yield from wrap(line, min(width, MAX_TEXT_COLUMNS))


def _against_lines(found: Against, what: str, reference: str, width: int) -> Iterator[str]:
    yield f"{one_line(what)} against {one_line(reference)}: {found.verdict.verdict.upper()}"
    for reason in found.verdict.reasons:
        yield from _item(reason, width)
    for note in found.notes:
        yield from _item(note, width, "note: ")
    for label, changes in ((one.label, one.changes) for one in found.samples):
        is_single = is_of_single_runs(changes)
        num_now, num_base = (max(numbers) for numbers in zip(*((c.num_now, c.num_base) for c in changes), strict=True))
        yield ""
        yield f"{label} ({num_now} against {count(num_base, 'run')})"
        is_narrow = width < _WIDTH
        if not is_narrow:
            yield f"  {'figure':<36}{'now':>9} {'reference':>9}{'noise':>9}"
        for change in changes:
            if change.is_deciding:
                yield _change(change, is_single, is_narrow)
                # That a side has no value at all is seen in its column.
                if change.word == "no data" and change.num_now and change.num_base:
                    yield f"    {change.why}"
        others = [change for change in changes if not change.is_deciding and not change.now is change.base is None]
        if others:
            yield "  not decisive:"
        yield from (_change(change, is_single, is_narrow) for change in others)


def _item(text: object, width: int, mark: str = "- ") -> list[str]:
    return wrap(f"  {mark}{one_line(text)}", width, 2 + len(mark))


def _change(change: Change, is_single: bool, is_narrow: bool) -> str:
    """One row. Of single runs the verdict says once that nearly no difference can be told from chance."""
    figure = change.figure
    now, base, band = (figure.to_text(value) for value in (change.now, change.base, change.band))
    word = "" if is_single and change.word == "cannot tell" else change.word
    if is_narrow:
        tail = f": {word}" if word else ""
        return f"  {figure.name}: {now}, reference {base}, noise {band}{tail}"
    return f"  {figure.name:<36}{now:>9} {base:>9}{band:>9}  {word}".rstrip()


def _bars(samples: Sequence[Sample], name: str, label_cells: int, unicode: bool, width: int) -> Iterator[str]:
    figure = METRICS[name]
    full, light = ("█", "░") if unicode else ("#", ".")
    top = max((value for sample in samples for value in sample.values(name)), default=0.0)
    for sample in samples:
        values = sample.spread(name)
        label = f"  {pad(sample.label, label_cells)}"
        if cells(sample.label) > label_cells:
            yield f"  {sample.label}"
            label = f"  {'':<{label_cells}}"
        if not values["n"]:
            yield f"{label}{'-':>12}"
            continue
        spread = f"{figure.to_text(values['min'])} to {figure.to_text(values['max'])}"
        row = f"{label}{figure.to_text(values['median']):>12}   {spread:<24} {values['n']} "
        scale = max(0, min(_BAR_CELLS, width - cells(row))) / top if top > 0 else 0.0
        solid = round(max(0.0, values["median"]) * scale)
        whole = max(solid, round(max(0.0, values["max"]) * scale))
        bar = full * solid + light * (whole - solid)
        yield f"{row}{bar}".rstrip()


def _runs(found: RunSet, sample: Sample) -> Iterator[str]:
    told = [run for run in sample.runs if run.error is None]
    if any(run.verdict == REFUSED for run in sample.runs):
        yield f"  {sample.label}: cannot be run"
        return
    if not sample.runs:
        yield f"  {sample.label}: not run"
        return
    passed = sum(run.verdict == "pass" for run in told)
    yield f"  {sample.label}: {passed} of {len(sample.runs)} pass"
    for run in sample.runs:
        if run.error is not None:
            yield f"    {run.round}: no run"
        else:
            place = "" if run.folder is None else run.folder.removeprefix("../../")
            # The verdict above names the reason of every run that speaks against it.
            is_named = run.verdict == "pass" or not run.reasons or outcome_against(found, run) is not None
            why = "" if is_named else f"  {one_line(run.reasons[0])}"
            yield f"    {run.round}: {run.verdict:<12} {place}{why}"
