import json
import random
import subprocess
import sys

import pytest

from benchmarks._machine import Machine
from benchmarks.planner import PLANNERS, SHAPES, STUDY, Shape, Timing, draw_alive, drops, mean, report, to_document
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
SHAPE = Shape(8, 4, 8)
TIMINGS = [Timing(0.1, 0.02, 0.03), Timing(0.12, 0.04, 0.05), Timing(0.13, 0.06, 0.09)]
FOUND = {SHAPE: {"mecefo-paper": [0.1, 0.3], "ndb": [0.1, 0.2], "exact": [0.4, 0.5], "mecefo": [0.0, 0.02]}}


@pytest.mark.unit
def test_ranks_are_lost_at_the_rate_of_four_in_thirty_two():
    generator = random.Random(1)
    alive = [len(draw_alive(32, generator)) for _ in range(400)]
    assert 27 < mean(alive) < 29
    assert min(alive) >= 1 and max(alive) <= 32


@pytest.mark.unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_shapes_compute_the_same_step_on_the_same_ranks(shape):
    cluster = shape.cluster()
    assert cluster.num_ranks == 32
    assert (shape.data_parallel, shape.pipeline) in STUDY
    per_sequence = [each.costs().layer_forward_seconds * each.cluster().num_microbatches for each in (shape, SHAPE)]
    assert per_sequence[0] == pytest.approx(per_sequence[1])


@pytest.mark.unit
def test_drops_are_of_the_same_situations_and_in_the_order_of_the_design():
    found = drops(SHAPE, 4)
    assert list(found) == list(PLANNERS)
    assert found == drops(SHAPE, 4)
    assert mean(found["mecefo"]) < mean(found["mecefo, nothing degraded"]) < mean(found["exact"]) < 1
    assert mean(found["mecefo"]) < mean(found["ndb"]) < mean(found["mecefo-paper"]) < mean(found["exact"])


@pytest.mark.unit
def test_the_report_says_whether_the_aim_is_met():
    lines = report(TIMINGS, FOUND, MACHINE).splitlines()
    assert lines[0] == "machine: 2 cores, a CPU, Python 3.11, torch 2.13"
    assert "aim: median CPU time at most 50 ms: met" in lines
    slow = [Timing(0.1, 3 * timing.cpu_seconds, timing.wall_seconds) for timing in TIMINGS]
    assert "aim: median CPU time at most 50 ms: NOT MET" in report(slow, FOUND, MACHINE)
    (paper,) = [line.split() for line in lines if " mecefo-paper " in line]
    assert paper[-6:] == ["20.0%", "20.0%", "10.0%", "30.0%", "2", "37.0%"]
    (ndb,) = [line.split() for line in lines if " ndb " in line]
    assert ndb[-1] == "-", "the study did not look at it"


@pytest.mark.unit
def test_the_document_is_plain_json():
    document = json.loads(json.dumps(to_document(TIMINGS, FOUND, MACHINE), allow_nan=False))
    assert document["planning"]["is_met"] is True
    assert document["planning"]["cpu_seconds"]["median"] == 0.04
    first = document["drops"][0]
    assert (first["planner"], first["mean"], first["study_mean"]) == ("mecefo-paper", pytest.approx(0.2), 0.37)


@pytest.mark.nightly
def test_quick():
    command = [sys.executable, "-m", "benchmarks.planner", "--json", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["drops"]) == len(SHAPES) * len(PLANNERS)
    assert document["planning"]["cpu_seconds"]["n"] == 3
