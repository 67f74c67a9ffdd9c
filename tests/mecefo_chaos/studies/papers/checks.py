"""The checks of all papers and a forecast, from few draws: for the tests of how they are shown."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mecefo_chaos.studies.forecast.cluster_file import load
from mecefo_chaos.studies.forecast.study import Study, study
from mecefo_chaos.studies.papers.check import Check
from mecefo_chaos.studies.papers.mecefo import check as mecefo
from mecefo_chaos.studies.papers.mecefo.forecasts import shipped_forecasts
from mecefo_chaos.studies.papers.mecefo.perplexity import shipped_convergence
from mecefo_chaos.studies.papers.mecefo.results import shipped_results
from mecefo_chaos.studies.papers.page import render
from mecefo_chaos.studies.papers.reft import check as reft
from mecefo_chaos.studies.papers.reft.real.measured import read_measured
from mecefo_chaos.studies.papers.reft.saving import read_saving
from mecefo_chaos.studies.papers.spare import check as spare
from mecefo_chaos.studies.papers.spare.simulated import read_simulated
from mecefo_chaos.studies.papers.text import check_text
from tests.mecefo_chaos.studies.forecast.test_study import CLUSTER
from tests.mecefo_chaos.studies.papers.mecefo.made import FAULT_FREE, UNDILATED

# Where no results of one's own are: what came with this version.
NOWHERE = Path("/no/such/folder")


@dataclass(frozen=True)
class Shown:
    """A check as text of a width and as a page."""

    text: Callable[[int], str]
    page: Callable[[], str]


def shown(check: Check) -> Shown:
    """With all tables."""
    return Shown(lambda width: check_text(check, width, with_details=True), lambda: render(check))


@cache
def forecast() -> Study:
    """A study of few hours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(CLUSTER)
        return study(load(path), hours=20, num_replications=1)


@cache
def of_mecefo() -> Shown:
    found = mecefo.check(shipped_results(), shipped_forecasts(), shipped_convergence(), UNDILATED, FAULT_FREE)
    return shown(found)


@cache
def of_reft() -> Shown:
    found = reft.check(read_measured(NOWHERE), read_saving(None), 1, 10)
    return shown(found)


@cache
def of_spare() -> Shown:
    found = spare.check(read_simulated(NOWHERE), 1, 20, 1)
    return shown(found)


PAPERS: Mapping[str, Callable[[], Shown]] = {"mecefo": of_mecefo, "reft": of_reft, "spare": of_spare}
