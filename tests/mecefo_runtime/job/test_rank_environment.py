"""What a process of a job learns from its environment comes back from the variables, and has defaults without them."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
JOB = JobConfig()
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1)
NUMBERS = st.integers(0, 1 << 31)


@given(st.data())
def test_it_comes_back_from_its_variables(data):
    kinds = {"str": WORDS, "int": NUMBERS, "int | None": st.none() | NUMBERS}
    drawn = {one.name: data.draw(kinds[one.type]) for one in fields(RankEnvironment) if one.name != "job"}
    environment = RankEnvironment(JOB, **drawn)
    variables = environment.variables()
    assert RankEnvironment.read(variables) == environment
    assert all(isinstance(value, str) for value in variables.values())


def test_only_the_job_must_be_there():
    assert RankEnvironment.read({"MECEFO_JOB": json.dumps(to_json(JOB)), "OTHER": "x"}) == RankEnvironment(JOB)
    assert RankEnvironment(JOB).variables().keys() == {"MECEFO_JOB"}
    with pytest.raises(KeyError):
        RankEnvironment.read({})


def test_a_launcher_that_has_the_job_itself_reads_the_rest():
    variables = {"MECEFO_METRICS": "auto", "RANK": "3", "LOCAL_RANK": "1"}
    expected = replace(RankEnvironment(JOB), metrics="auto", rank=3, local_rank=1)
    assert RankEnvironment.read(variables, JOB) == expected


def test_the_names_of_the_variables_stand_in_one_file():
    names = re.compile(r'"MECEFO_(?!CHAOS_SOURCE)[A-Z_]+"|\[.MECEFO_')
    packages = ("mecefo_runtime", "chaos", "harness", "mecefo_chaos", "benchmarks")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py") if names.search(path.read_text())]
    # A benchmark's own hook replaces the agent's.
    assert [path.relative_to(ROOT).as_posix() for path in files] == ["benchmarks/plain/phases.py"]
