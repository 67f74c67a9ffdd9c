"""The phases of a recovery in which the launcher starts all ranks again: they add up, and none is invented."""

from dataclasses import replace
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.command.recovery import LAUNCH_PHASES, UNOBSERVED
from tests.harness.analysis.test_attempts import KILLED, LAST, RESUMED, STARTUP, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

# Seconds after the fault.
REACTED, ENDED, FIRST, SECOND, CALLED, FORMED, READ, LOADED, ENTERED = 0.5, 1.0, 1.5, 1.75, 4.0, 4.25, 6.0, 7.0, 7.5
TOLD = ("reacted", "ended", "called", "read", "entered")


def restarted(*, told=TOLD, moved=(), gates=(), failed_attempt=None):
    """A kill in attempt 1, and its restart: only what is `told` was observed; `moved` are moments at other times."""
    at = {"reacted": REACTED, "ended": ENDED, "first": FIRST, "second": SECOND, "called": CALLED, "formed": FORMED}
    at |= {"read": READ, "loaded": LOADED, "entered": ENTERED, **dict(moved)}
    log = Log()
    log.events[0].fields["gates"] = list(gates)
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1, samples=64)
    log.kill(1)
    struck = log.at
    records = []

    def tell(moment, kind, **fields):
        records.append((struck + moment, kind, fields))

    if "reacted" in told:
        tell(at["reacted"], "rank_raised", pid=10, rank=0, exception="RuntimeError", failure="peer_lost")
    if "ended" in told:
        ended = {"exited_pid": 10, "exited_rank": 0, "exit": -15, "rank_attempt": 1}
        tell(at["ended"], "process_exited", role="rank", **ended)
    new = 2
    if failed_attempt is not None:
        new = 3
        began, over = failed_attempt
        tell(began, "attempt_started", attempt_number=2, world_size=2)
        tell(began, "process_started", role="rank", started_pid=15, started_rank=0, rank_attempt=2)
        tell(over, "process_exited", role="rank", exited_pid=15, exited_rank=0, exit=1, rank_attempt=2)
    tell(min(at["first"], at["second"]), "attempt_started", attempt_number=new, world_size=2)
    for rank, moment in ((0, at["first"]), (1, at["second"])):
        tell(moment, "process_started", role="rank", started_pid=10 * new + rank, started_rank=rank, rank_attempt=new)
        if "called" in told:
            began = struck + at["called"] - (0.25 if rank else 0.0)
            formed = {"began_monotonic": began, "seconds": struck + at["formed"] - began}
            tell(at["formed"], "process_group_formed", pid=10 * new + rank, rank=rank, **formed)
        if "entered" in told:
            tell(at["entered"], "training_entered", pid=10 * new + rank, rank=rank, parameters="x")
    if "read" in told:
        loaded = {"began_monotonic": struck + at["read"], "seconds": at["loaded"] - at["read"]}
        tell(at["loaded"], "state_loaded", pid=10 * new, rank=0, by="torch", **loaded)
    for moment, kind, fields in sorted(records, key=lambda one: one[0]):
        log.at = moment
        rank = fields.pop("rank", None)
        log.tell(kind, **fields)
        log.events[-1] = replace(log.events[-1], rank=rank)
    log.at = max(log.at, struck + 8.0 - STEP)
    log.tell("steps_counted", pid=10 * new, step=RESUMED, count_kept_by="optimizer")
    log.steps(new, RESUMED, LAST, samples=64)
    return log.end()


def phases(**how):
    (incident,) = summarized(restarted(**how))["incidents"]
    return {name: incident["phases_seconds"][name] for name in (*LAUNCH_PHASES, UNOBSERVED)}, incident


def test_each_phase_ends_at_a_moment_that_the_last_rank_came_to():
    found, _ = phases()
    expected = {
        "reaction": REACTED,
        "teardown": ENDED - REACTED,
        "failed_attempts": None,
        "launch": FIRST - ENDED,
        "start": SECOND - FIRST,
        "imports": CALLED - SECOND,
        "process_group": FORMED - CALLED,
        "model": READ - FORMED,
        "load": LOADED - READ,
        "resumed_step": 8.0 - LOADED,
        "unobserved": None,
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_without_a_load_the_model_ends_at_the_first_pass():
    found, _ = phases(told=("reacted", "ended", "called", "entered"))
    assert found["load"] is None and found["unobserved"] is None
    assert (found["model"], found["resumed_step"]) == pytest.approx((ENTERED - FORMED, 8.0 - ENTERED), abs=1e-6)


def test_attempts_without_a_step_are_a_phase():
    found, _ = phases(failed_attempt=(1.1, 1.3))
    assert (found["failed_attempts"], found["launch"]) == pytest.approx((0.3, 0.2), abs=1e-6)
    assert found["unobserved"] is None


@given(told=st.sets(st.sampled_from(TOLD)), data=st.data())
def test_they_add_up_and_what_was_not_observed_is_left_out(told, data):
    names = ("reacted", "ended", "first", "second", "called", "read")
    moved = {one: data.draw(st.floats(0.05, 7.2)) for one in data.draw(st.sets(st.sampled_from(names)))}
    if "called" in moved:
        moved["formed"] = moved["called"] + 0.3
    if "read" in moved:
        moved["loaded"] = moved["read"] + 0.1
    found, incident = phases(told=tuple(told), moved=moved.items())
    known = [seconds for seconds in found.values() if seconds is not None]
    assert all(seconds >= 0 for seconds in known)
    assert fsum(known) == pytest.approx(incident["recovery_seconds"], abs=1e-9)
    for moment, nearby in {"ended": ("teardown", "launch"), "called": ("imports", "process_group", "model")}.items():
        if moment not in told:
            assert all(found[phase] is None for phase in nearby if phase != "model" or moment == "called")
            assert found["unobserved"] is not None


def test_a_gate_on_a_phase_is_undecided_where_it_was_not_observed():
    gates = ["recovery_launch_seconds < 1", "recovery_imports_seconds < 0.1"]
    decided = summarized(restarted(gates=gates))
    assert [gate["passed"] for gate in decided["gates"][:2]] == [True, False]
    undecided = summarized(restarted(gates=gates, told=("reacted", "read", "entered")))
    assert [gate["passed"] for gate in undecided["gates"][:2]] == [None, None]
    assert (undecided["verdict"], undecided["exit_code"]) == ("inconclusive", 5)
