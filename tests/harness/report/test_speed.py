"""The picture of the speed: what it enlarges, what it marks, and where its signs stand."""

import re
from dataclasses import replace

import pytest

from harness.analysis.state import build
from harness.analysis.throughput import measure
from harness.judging.summarize import summarize
from harness.report import history
from harness.report.curves import Curves, Mark, StepPoint, trace
from harness.report.drawing import NARROW, WIDE, Frame, out_of_range, scale
from harness.report.history import History
from harness.report.speed import speed_over_time
from harness.report.wording import comparable_baseline
from tests.harness import synthetic
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit


def picture(events, width=WIDE):
    return str(speed_over_time(trace(events), history.read(events), width))


def places(drawn, css):
    """(left, right) of each box of a class, in pixels, those of the legend left out."""
    boxes = re.findall(rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="([\d.]+)" class="{css}"', drawn)
    return [(float(x), float(x) + float(width)) for x, width, height in boxes if float(height) > 10]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_short_incident_of_a_long_run_is_enlarged(width):
    events = synthetic.run(steps=400, faults=[Fault(step=300, repair_steps=5)])
    drawn = picture(events, width)
    enlarged, whole = places(drawn, "band-active")
    assert enlarged[1] - enlarged[0] > 4 * (whole[1] - whole[0])
    ((left, right),) = places(drawn, "zoom")
    assert left < whole[0] and whole[1] < right
    assert "enlarged above" in drawn


def test_incidents_far_apart_are_enlarged_side_by_side():
    apart = synthetic.run(steps=400, faults=[Fault(step=60, repair_steps=5), Fault(step=340, node=2, repair_steps=5)])
    drawn = picture(apart)
    *enlarged, early, late = places(drawn, "band-active")
    assert len(enlarged) == 2 and enlarged[0][1] < enlarged[1][0]
    assert all(
        shown[1] - shown[0] > 4 * (whole[1] - whole[0]) for shown, whole in zip(enlarged, (early, late), strict=True)
    )
    first, second = places(drawn, "zoom")
    assert first[0] < early[0] < early[1] < first[1] < second[0] < late[0] < late[1] < second[1]
    many = [Fault(step=60 * number, repair_steps=5) for number in range(1, 6)]
    assert len(places(picture(synthetic.run(steps=400, faults=many)), "zoom")) <= 1


def test_a_run_that_is_all_incident_is_drawn_once():
    events = synthetic.run(steps=40, faults=[Fault(step=5, repair_steps=30)])
    drawn = picture(events)
    assert len(places(drawn, "band-active")) == 1 and 'class="zoom"' not in drawn
    assert 'class="zoom"' not in picture(synthetic.run(faults=[]))


def test_the_baseline_noise_is_a_band_around_the_median():
    events = synthetic.run(steps=400, faults=[Fault(step=300, repair_steps=5)])
    noise = measure(build(events)).throughput_noise_ratio
    assert noise is not None
    assert f"baseline noise, ±{noise:.1%}" in picture(events)
    early = synthetic.run(steps=400, faults=[Fault(step=4, repair_steps=5)])
    assert measure(build(early)).throughput_noise_ratio is None
    assert "baseline noise" not in picture(early) and 'class="band-noise"' not in picture(early)


def test_fault_recovery_repair_and_return_are_marked_and_none_hides_another():
    events = synthetic.run(steps=4000, faults=[Fault(step=300, repair_steps=1)])
    drawn = picture(events)
    body = drawn[: drawn.index(" since the job started")]
    signs = re.findall(r'<path d="M([\d.]+),([\d.]+)[^"]*" class="sign-(fault|recovered|repair|back)"', body)
    assert {kind for *_, kind in signs} == {"fault", "recovered", "repair", "back"}
    # A path begins at a corner of its sign; this leads to the middle.
    middle = {"recovered": (0.0, 5.0), "repair": (5.0, -4.0), "back": (4.5, 0.0)}
    spots = [(float(x) + middle[k][0], float(y) + middle[k][1]) for x, y, k in signs if k != "fault"]
    for number, (x, y) in enumerate(spots):
        assert all(abs(x - other) >= 10 or abs(y - below) >= 10 for other, below in spots[number + 1 :])


STARTUP_SECONDS, STEP_SECONDS = 50.0, 0.1


def own_job(marks=(), steps=200):
    points = tuple(
        StepPoint(step, STARTUP_SECONDS + STEP_SECONDS * (step - 1), STARTUP_SECONDS + STEP_SECONDS * step, 10.0, None)
        for step in range(1, steps + 1)
    )
    return Curves(points, (), tuple(marks))


def test_neither_startup_nor_shutdown_of_the_job_is_drawn():
    drawn = speed_over_time(own_job(), History(end_seconds=120.0, before=100.0), WIDE)
    assert "start-up of 50.0 s not drawn" in drawn
    # A phone has no room for more.
    assert "(start-up not drawn)" in speed_over_time(own_job(), History(end_seconds=120.0, before=100.0), NARROW)
    (line,) = re.findall(r'points="([^"]+)" class="curve-main"', drawn)[:1]
    places = [float(pair.split(",")[0]) for pair in line.split()]
    assert places[0] < 70 and places[-1] > 840, "the steps fill the chart"


def test_faults_of_the_same_moment_stand_side_by_side():
    marks = [Mark("injected", 60.0, 100, incident) for incident in (0, 1)]
    drawn = speed_over_time(own_job(marks), History(end_seconds=80.0, before=100.0), WIDE)
    first, second = sorted(float(x) for x in re.findall(r'<path d="M([\d.]+),[^"]*" class="sign-fault"', drawn)[:2])
    assert second - first >= 11


def test_only_a_baseline_at_the_same_pace_is_drawn():
    summary = summarize(synthetic.run())
    own = replace(summary, baseline_wall_clock_seconds=3.0, baseline_work_per_second=90.0, dilation_ratio=None)
    assert comparable_baseline(own) == 90.0
    assert comparable_baseline(replace(own, dilation_ratio=8.0)) is None
    past = History(end_seconds=80.0, before=100.0)
    assert 'class="curve-twin"' in speed_over_time(own_job(), past, WIDE, 90.0)
    assert 'class="curve-twin"' not in speed_over_time(own_job(), past, WIDE)


def test_a_clipped_stretch_is_marked_where_it_begins_and_ends():
    points = [(0.0, 1.0), (1.0, 9.0), (2.0, 12.0), (3.0, 9.0), (4.0, 1.0)]
    body, items = out_of_range((points,), scale(0, 4, 0, 800), Frame(WIDE, 0, 100), 0.0, 5.0)
    assert sum('class="sign-above"' in piece for piece in body) == 3
    assert items == [("sign-above", "above the scale, up to 12")]
