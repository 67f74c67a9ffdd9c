"""The picture of the speed: what it enlarges, what it marks, and where its signs stand."""

import re

import pytest

from harness.analysis.state import build
from harness.analysis.throughput import measure
from harness.report import history
from harness.report.curves import trace
from harness.report.drawing import NARROW, WIDE
from harness.report.speed import speed_over_time
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


def test_a_run_that_is_all_incident_is_drawn_once():
    events = synthetic.run(steps=40, faults=[Fault(step=5, repair_steps=30)])
    drawn = picture(events)
    assert len(places(drawn, "band-active")) == 1 and 'class="zoom"' not in drawn
    assert 'class="zoom"' not in picture(synthetic.run(faults=[]))


def test_the_baseline_noise_is_a_band_around_the_median():
    events = synthetic.run(steps=400, faults=[Fault(step=300, repair_steps=5)])
    noise = measure(build(events)).noise_ratio
    assert noise is not None
    assert f"baseline noise, ±{noise:.1%}" in picture(events)
    early = synthetic.run(steps=400, faults=[Fault(step=4, repair_steps=5)])
    assert measure(build(early)).noise_ratio is None
    assert "baseline noise" not in picture(early) and 'class="band-noise"' not in picture(early)


def test_fault_recovery_repair_and_return_are_marked_and_none_hides_another():
    events = synthetic.run(steps=4000, faults=[Fault(step=300, repair_steps=1)])
    drawn = picture(events)
    body = drawn[: drawn.index("seconds since the job started")] if "seconds since" in drawn else drawn
    signs = re.findall(r'<path d="M([\d.]+),([\d.]+)[^"]*" class="sign-(fault|recovered|repair|back)"', body)
    assert {kind for *_, kind in signs} == {"fault", "recovered", "repair", "back"}
    spots = [(float(x), float(y)) for x, y, kind in signs if kind != "fault"]
    for number, (x, y) in enumerate(spots):
        assert all(abs(x - other) >= 6 or abs(y - below) >= 6 for other, below in spots[number + 1 :])
