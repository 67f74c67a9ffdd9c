"""Which runs are made undilated, and whose figures are shown."""

from __future__ import annotations

import pytest

from chaos.experiment.job import Job
from mecefo_chaos.studies.papers.mecefo.undilated import FILE, NUM_RANKS, experiment_of, methods, read_undilated

pytestmark = pytest.mark.unit


def test_every_method_of_the_runtime_loses_another_rank_with_every_seed():
    for name in methods():
        lost = set()
        for seed in range(3):
            experiment = experiment_of(name, seed)
            assert isinstance(experiment.job, Job)
            assert (experiment.job.num_ranks, experiment.job.dilation) == (NUM_RANKS, "off")
            (fault,) = experiment.faults
            lost.add(str(fault.on))
        assert len(lost) == 3


def test_what_came_with_this_version_stands_where_nothing_else_was_measured(tmp_path):
    shipped = read_undilated(tmp_path)
    assert {row.method for row in shipped.rows} == set(methods())
    for text in ("", "[]", "{}", "[" * 100_000):
        (tmp_path / FILE).write_text(text)
        assert read_undilated(tmp_path) == shipped
