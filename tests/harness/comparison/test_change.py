"""Better, worse, or within the noise."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.change import compare, exit_code, least_change, noise_band
from harness.comparison.figures import DECIDING, HEADLINE, NOISE, figures_of
from harness.judging.metrics import METRICS
from tests.harness.comparison.samples import run, sample
from tests.harness.summaries import incident, summary

pytestmark = pytest.mark.unit

finite = st.floats(min_value=1e-3, max_value=1e3)
values = st.lists(finite, min_size=2, max_size=6)
RECOVERY = METRICS["recovery_seconds"]


def word(now, base, name="recovery_seconds", tolerance=0.05):
    (change, *_) = compare(sample(*now, name=name), sample(*base, name=name), [name], tolerance)
    assert change.figure.name == name
    return change.word


def test_a_clear_change_is_told_and_a_small_one_is_not():
    assert word([2.0, 2.1, 2.05], [0.3, 0.31, 0.32]) == "worse"
    assert word([0.3, 0.31, 0.32], [2.0, 2.1, 2.05]) == "better"
    assert word([0.30, 0.35, 0.32], [0.31, 0.36, 0.30]) == "within noise"


def test_higher_is_better_of_some():
    assert word([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "goodput_ratio") == "worse"
    assert word([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "goodput_ratio") == "better"


def test_any_step_lost_counts_and_from_a_single_run():
    assert word([1], [0], "steps_lost") == "worse"
    assert word([0], [0], "steps_lost") == "within noise"
    assert word([0], [3], "steps_lost") == "better"


def test_of_single_runs_a_time_cannot_be_told_whatever_it_is():
    assert word([100.0], [0.1]) == "cannot tell"
    assert word([100.0], [0.1, 0.1]) == "cannot tell"
    assert word([100.0], [0.1, 0.1, 0.11]) == "worse"


def test_of_single_runs_the_noise_within_them_tells_of_the_speed():
    def single(drop, noise):
        return replace(sample(0.0), runs=(run(throughput_drop_ratio=drop, **{NOISE: noise}),))

    def of(now, base):
        return compare(single(*now), single(*base), ["throughput_drop_ratio"], 0.0)[0]

    assert of((0.30, 0.02), (0.20, 0.03)).word == "worse"
    assert of((0.24, 0.02), (0.20, 0.03)).word == "within noise"
    assert of((0.24, 0.02), (0.20, 0.03)).band == pytest.approx(0.05)
    assert of((0.30, None), (0.20, 0.03)).word == "cannot tell"


def test_of_single_runs_what_is_within_the_tolerance_is_no_change():
    assert word([1.04], [1.0], tolerance=0.05) == "within noise"
    assert word([1.06], [1.0], tolerance=0.05) == "cannot tell"


def test_what_is_missing_is_no_judgement():
    for now, base in (([None, None], [1.0, 1.1]), ([1.0, 1.1], [None]), ([1.0, None, 1.0], [1.0, 1.1])):
        assert word(now, base) == "no data"


def test_a_tolerance_is_points_of_a_ratio_and_a_share_of_a_time():
    assert least_change(METRICS["goodput_ratio"], 0.5, 0.05) == 0.05
    assert least_change(RECOVERY, 2.0, 0.05) == pytest.approx(0.1)
    assert least_change(METRICS["steps_lost"], 20, 0.5) == 0
    assert word([1.2, 1.2, 1.2], [1.0, 1.0, 1.0], tolerance=0.3) == "within noise"
    assert word([1.2, 1.2, 1.2], [1.0, 1.0, 1.0], tolerance=0.1) == "worse"


class TestExitCode:
    def of(self, *pairs, tolerance=0.0):
        now = {name: ours for name, ours, _ in pairs}
        base = {name: theirs for name, _, theirs in pairs}
        three = [replace(sample(0.0), runs=tuple(run(**figures) for _ in range(3))) for figures in (now, base)]
        return exit_code(compare(*three, [name for name, *_ in pairs], tolerance))

    def test_worse_fails(self):
        assert self.of(("recovery_seconds", 2.0, 1.0), ("goodput_ratio", 0.9, 0.5)) == 1

    def test_better_passes(self):
        assert self.of(("recovery_seconds", 1.0, 2.0), ("goodput_ratio", 0.5, 0.5)) == 0

    def test_what_is_gone_is_inconclusive_but_what_never_was_is_not(self):
        assert self.of(("recovery_seconds", None, 1.0), ("goodput_ratio", 0.5, 0.5)) == 5
        assert self.of(("recovery_seconds", 1.0, None), ("goodput_ratio", 0.5, 0.5)) == 0

    def test_worse_outranks_gone(self):
        assert self.of(("recovery_seconds", None, 1.0), ("goodput_ratio", 0.4, 0.5)) == 1

    def test_what_may_be_worse_is_inconclusive_and_what_may_be_better_is_not(self):
        now, base = (replace(sample(0.0), runs=(run(steps_lost=0, recovery_seconds=s),)) for s in (1.0, 2.0))
        assert exit_code(compare(now, base, DECIDING)) == 0
        assert exit_code(compare(base, now, DECIDING)) == 5
        assert exit_code(compare(base, now, ["steps_lost"])) == 0

    def test_no_data_at_all_decides_nothing(self):
        assert self.of(("recovery_seconds", None, None)) == 5


@given(values)
def test_a_sample_is_never_worse_or_better_than_itself(measured):
    assert word(measured, measured) in ("within noise",)


@given(values, values)
def test_better_is_worse_the_other_way_round(now, base):
    opposite = {"better": "worse", "worse": "better", "within noise": "within noise"}
    assert word(now, base, tolerance=0.0) == opposite[word(base, now, tolerance=0.0)]


@given(values, values, st.floats(min_value=0.1, max_value=10))
def test_the_unit_does_not_matter(now, base, factor):
    if abs(math.log(factor)) < 1e-9:
        return
    scaled = word([v * factor for v in now], [v * factor for v in base], tolerance=0.0)
    band = noise_band(RECOVERY, now, base, None)
    difference = abs(sorted(now)[len(now) // 2] - sorted(base)[len(base) // 2])
    # At the very edge of the band rounding decides.
    if not math.isclose(band, difference, rel_tol=1e-6):
        assert scaled == word(now, base, tolerance=0.0) or len(now) % 2 == 0 or len(base) % 2 == 0


@pytest.mark.parametrize(("num_now", "num_base"), [(3, 3), (1, 3), (2, 2), (5, 5), (3, 10)])
def test_of_samples_that_are_the_same_few_are_taken_for_worse(num_now, num_base):
    source = random.Random(num_now * 100 + num_base)
    rounds = 2000
    told = [
        word(
            [source.gauss(10, 1) for _ in range(num_now)],
            [source.gauss(10, 1) for _ in range(num_base)],
            tolerance=0.0,
        )
        for _ in range(rounds)
    ]
    assert told.count("worse") / rounds < 0.02


def test_a_loss_of_the_size_of_the_noise_is_seen_with_enough_runs():
    source = random.Random(7)
    now, base = ([source.gauss(mean, 1) for _ in range(30)] for mean in (12, 10))
    assert word(now, base, tolerance=0.0) == "worse"


def test_every_deciding_figure_exists_and_has_a_better_way():
    assert all(METRICS[name].better is not None for name in DECIDING)
    assert {name for name in HEADLINE if METRICS[name].better is not None} <= set(DECIDING)


def test_the_figure_of_a_run_is_the_largest_of_its_incidents_and_none_if_one_is_missing():
    two = summary(incidents=[incident(ranks=[1]), incident(ranks=[2], recovery_seconds=0.9)])
    assert figures_of(two)["recovery_seconds"] == 0.9
    assert figures_of(two)["detect_seconds"] == 0.002
    lacking = summary(incidents=[incident(ranks=[1]), incident(ranks=[2], recovery_seconds=None)])
    assert figures_of(lacking)["recovery_seconds"] is None
    assert figures_of(summary(incidents=[]))["recovery_seconds"] is None


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("goodput_ratio", 0.1234, "12.34%"),
        ("recovery_seconds", 0.3, "0.30 s"),
        ("recovery_seconds", -0.3, "-0.30 s"),
        ("steps_lost", 3.0, "3"),
        ("final_loss", 2.71828, "2.718"),
        ("throughput_before_tokens_per_second", 12345.6, "12,346"),
        ("steps_lost", None, "-"),
    ],
)
def test_figures_are_written_with_their_units(name, value, text):
    assert METRICS[name].to_text(value) == text


@pytest.mark.parametrize(
    ("runs", "deviations"),
    re.findall(
        r"^\| (\d+) \| ([\d.]+) x s \|$",
        (Path(__file__).parents[3] / "docs/how-to/comparing.md").read_text(),
        re.MULTILINE,
    ),
)
def test_the_table_of_repeats_in_the_documents_is_what_is_applied(runs, deviations):
    steps = range(int(runs))
    # Equally spaced values with a standard deviation of 1.
    values = [100 + step / stdev(steps) for step in steps]
    band = noise_band(METRICS["recovery_seconds"], values, [value + 50 for value in values], None)
    assert band == pytest.approx(float(deviations), abs=0.051)
