"""Runs as a table for spreadsheets and data frames: a row for each run, a column for each metric, in base units."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from harness.comparison.figures import with_earlier_names
from harness.comparison.sample import Sample
from harness.judging.metrics import METRICS

# Of each row, before the metrics. `usable` is 1 where medians and verdicts count the run.
_COLUMNS = ("set", "label", "round", "verdict", "usable", "experiment_hash", "folder", "error")


def csv_of(sets: Mapping[str, Sequence[Sample]]) -> str:
    """All runs of all samples, by the name of the set they are of. A value that a run has not is empty."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    names = with_earlier_names({name: name for name in METRICS})
    table.writerow((*_COLUMNS, *names))
    for name, samples in sets.items():
        for sample in samples:
            for run in sample.runs:
                about = (run.round, run.verdict, int(run.is_usable), sample.experiment_hash, run.folder, run.error)
                figures = (run.figures.get(metric) for metric in names.values())
                table.writerow((name, sample.label, *("" if value is None else value for value in (*about, *figures))))
    return written.getvalue()
