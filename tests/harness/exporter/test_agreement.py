"""What Prometheus reads last of a run is what its summary says, figure by figure."""

import pytest

from harness.analysis.accounting import BADPUT_CAUSES
from tests.harness.exporter.scrape import assert_agrees, scraped
from tests.harness.judging.test_restart_figures import event as told
from tests.harness.judging.test_restart_figures import log as restarted
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, Kill, run

pytestmark = pytest.mark.unit

SLOW = (Fault(kind="slow-rank", lasts_steps=10),)


def slow_before_the_restart(undone=1.92):
    """A rank is slow for some steps; later another is lost, all are started again, and go back behind both."""
    slow = {"incident": 1, "fault": "slow-rank", "ranks": [0], "goes_on": True, "target": "rank=0"}
    events = [
        *restarted(),
        told("injected", 1.32, step=4, phase="forward", **slow),
        told("verified", 1.45, incident=1, evidence="it is slow"),
        told("undone", undone, incident=1),
    ]
    return sorted(events, key=lambda event: event.monotonic_seconds)


@pytest.mark.parametrize("undone", [1.62, 1.92, 2.5])
def test_a_job_that_restarts_all_ranks_with_a_slow_rank_before_it(undone):
    """Steps that were done again counted as work during the fault while the run went on, and not in its summary."""
    events = slow_before_the_restart(undone)
    summary = summarized(events)
    assert scraped(events)["chaos_throughput_drop_ratio", ()] == summary["throughput_drop_ratio"]
    assert_agrees(events, summary)


@pytest.mark.parametrize(
    "events",
    [
        run(),
        run(faults=()),
        run(faults=[Fault(role="coordinator", kind="kill-process"), Fault(step=40, node=2, repair_steps=None)]),
        run(faults=[Fault(), Fault(node=2, during_regroup=True)]),
        run(faults=[Fault(recovers=False)], job_fails=True),
        run(faults=[Fault(verified=False)]),
        run(faults=[Fault(fires=False)]),
        run(ended="interrupted"),
        run(ended="halted"),
        run(cut_off_after_step=30),
        run(jitter_ratio=0.1),
        restarted(),
        run(faults=SLOW, kills=(Kill(rank=5, step=40),)),
        run(faults=SLOW, kills=(Kill(rank=5, step=25),)),
        run(faults=[Fault(step=40)], kills=(Kill(rank=7, step=12, back_at=30),)),
    ],
    ids=[
        *("node lost", "no faults", "coordinator and a node", "second loss in the regroup", "job died", "unverified"),
        *("never fired", "interrupted", "halted", "cut off", "noise", "restarted"),
        *("a loss that no fault explains", "one under a fault", "one before the fault"),
    ],
)
def test_the_last_reading_is_the_summary(events):
    assert_agrees(events, summarized(events))


@pytest.mark.parametrize(
    "events", [slow_before_the_restart(), run(faults=SLOW, kills=(Kill(rank=5, step=25, back_at=40),), baseline=False)]
)
def test_what_is_read_at_every_event_never_takes_back_what_was_told(events):
    before = {}
    for number in range(len(events)):
        found = scraped(events[: number + 1])
        for cause in BADPUT_CAUSES:
            key = "training_badput_seconds_total", (("cause", cause),)
            assert found.get(key, 0.0) >= before.get(key, 0.0) - 1e-9
        before = found
