"""Device errors by rank, as an exporter shows them."""

import pytest

from harness.analysis.ranks import DeviceErrors
from harness.analysis.state import state_of
from mecefo_runtime.system.events import BASELINE_JOB, Event

pytestmark = pytest.mark.unit


def devices(*events):
    return state_of(events).ranks.devices


def telemetry(rank, xid, *, sbe=0, dbe=1, job="main"):
    fields = {"rank": rank, "xid": xid, "ecc_sbe": sbe, "ecc_dbe": dbe, "record": "r"}
    return Event("telemetry", "injector", 0.0, 0.0, 1, job=job, fields=fields)


def test_counters_add_up_by_rank():
    assert devices(
        telemetry(1, 63, sbe=4, dbe=0),
        Event("step_committed", "rank", 0.0, 0.0, 1, step=1),
        telemetry(0, 48),
        telemetry(1, 48, dbe=2),
        telemetry(1, 48),
        telemetry(1, 79, job=BASELINE_JOB),
    ) == {
        0: DeviceErrors(0, 1, 48, {48: 1}),
        1: DeviceErrors(4, 3, 48, {63: 1, 48: 2}),
    }


def test_without_faults_there_is_nothing_to_show():
    assert devices(Event("step_committed", "rank", 0.0, 0.0, 1, step=1)) == {}
