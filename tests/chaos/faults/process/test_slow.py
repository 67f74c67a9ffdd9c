"""A rank that sleeps before a phase: what the effect does in it, and what is made of the job's steps."""

import asyncio
import json
import time

import pytest

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.process.slow import EFFECT, DelayParameters, SlowCheckpoint, SlowData
from chaos.faults.watch import Watch
from chaos.in_process.slow import DelayPhase
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

STEP_SECONDS = 0.1
DELAY_SECONDS = 0.2


def effect(told, *, phase="data", delay=0.02, jitter=0.0, seed=0):
    arguments = {"phase": phase, "delay_seconds": delay, "jitter_seconds": jitter, "seed": seed}
    return DelayPhase(arguments, None, told.append)


def test_the_rank_sleeps_before_that_phase_of_every_step_and_tells_how_long():
    told = []
    delaying = effect(told)
    began = time.monotonic()
    delaying.begin(5, "forward")
    delaying.released()
    for phase in ("backward", "reduce", "data", "forward", "data"):
        delaying.announced(6, phase)
    assert [report["step"] for report in told] == [6, 6]
    assert all(report["slept_seconds"] >= 0.02 for report in told)
    assert sum(report["slept_seconds"] for report in told) <= time.monotonic() - began
    assert told[0]["woke_monotonic"] <= told[1]["woke_monotonic"] - 0.02
    assert delaying.lift()["num_sleeps"] == 2
    assert json.loads(json.dumps(told)) == told


def test_held_before_the_very_phase_it_sleeps_in_that_step_already():
    told = []
    delaying = effect(told)
    delaying.begin(5, "data")
    assert told == [], "a held rank is not slow yet"
    delaying.released()
    assert [report["step"] for report in told] == [5]


def test_jitter_is_drawn_from_the_seed_and_stays_within_what_was_asked():
    def asked(seed):
        told = []
        delaying = effect(told, delay=0.002, jitter=0.001, seed=seed)
        delaying.begin(1, "forward")
        for step in range(8):
            delaying.announced(step, "data")
        return [report["asked_seconds"] for report in told]

    assert asked(1) == asked(1) != asked(2)
    assert all(0.001 <= seconds <= 0.003 for seconds in asked(1))
    assert len(set(asked(1))) == 8


class Inside:
    """A rank's agent whose reports are given: (step, seconds slept, when it woke)."""

    def __init__(self, reports):
        self.begun = []
        self.lifted = []
        self._reports = asyncio.Queue()
        for step, slept, woke in reports:
            self._reports.put_nowait({"step": step, "slept_seconds": slept, "woke_monotonic": woke})

    async def begin(self, rank, name, arguments):
        self.begun.append((rank, name, json.loads(json.dumps(arguments))))
        return 7, {}

    async def report(self, rank, handle, timeout_seconds):
        assert handle == 7
        try:
            return await asyncio.wait_for(self._reports.get(), min(timeout_seconds, 0.05))
        except TimeoutError:
            raise EffectNotSeen(f"rank {rank} reported nothing within {timeout_seconds:g} s") from None

    async def lift(self, rank, handle, timeout_seconds):
        assert timeout_seconds > DELAY_SECONDS
        self.lifted.append((rank, handle))
        return {}


class Ranks:
    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", ProcessId(2_000_000_000, 1), rank=rank, node=0) for rank in ranks)


def commits(first, last, began, seconds):
    """Commits of the steps `first` to `last`, `seconds` apart."""
    return [
        Event(
            "step_committed",
            "rank",
            0.0,
            0.0,
            1,
            step=step,
            fields={"committed_monotonic": began + (step - first + 1) * seconds},
        )
        for step in range(first, last + 1)
    ]


def play(fault, reports, events, *, begins=True):
    """Apply and verify with these reports of the rank and commits of the job; returns (evidence, inside)."""
    inside = Inside(reports)
    watch = Watch()
    context = FaultContext(processes=Ranks(), inside=inside, watch=watch, run_folder=None)

    async def run():
        act = fault.prepare(ResolvedTarget(ranks=(1,)), context)
        assert json.loads(json.dumps(dict(act.undo_record))) == act.undo_record
        if begins:
            await fault.apply(act, context)
        for event in events:
            watch.feed(event)
        evidence = await fault.verify(act, context, 0.1)
        await fault.lift(act, context)
        fault.undo(act.undo_record)
        return evidence

    return asyncio.run(run()), inside


# Ten usual steps, the last committed at second 1.0, then slow ones.
USUAL = commits(1, 10, 0.0, STEP_SECONDS)
SLOW = commits(11, 16, 1.0, STEP_SECONDS + DELAY_SECONDS)
SLEEPS = [(step, DELAY_SECONDS, 1.0 + (step - 11) * (STEP_SECONDS + DELAY_SECONDS) + 0.2) for step in range(11, 16)]


def test_sleeps_and_commits_that_fit_are_the_evidence():
    fault = SlowData(DelayParameters())
    fault.seed = 1
    evidence, inside = play(fault, SLEEPS, USUAL + SLOW)
    ((rank, name, arguments),) = inside.begun
    assert (rank, name) == (1, EFFECT)
    assert (arguments["phase"], arguments["delay_seconds"], arguments["jitter_seconds"]) == ("data", 0.2, 0.0)
    assert evidence["slept_seconds"]["n"] == 5
    assert evidence["step_seconds_during"]["median"] == pytest.approx(0.3)
    assert evidence["step_seconds_before"]["median"] == pytest.approx(0.1)
    assert "0.300 s instead of 0.100 s" in evidence["summary"]
    assert json.loads(json.dumps(evidence)) == evidence
    assert inside.lifted == [(1, 7)]


def test_a_checkpoint_is_waited_for_in_the_step_after_it():
    fault = SlowCheckpoint(DelayParameters())
    evidence, _ = play(fault, [(10, DELAY_SECONDS, 1.2)], USUAL + SLOW)
    assert evidence["step_seconds_during"] == {"median": pytest.approx(0.3), "min": 0.3, "max": 0.3, "n": 1} | {
        key: pytest.approx(0.3) for key in ("min", "max")
    }


@pytest.mark.parametrize(
    ("reports", "events", "reason"),
    [
        ([], USUAL + SLOW, "reported nothing"),
        ([(11, 0.1, 1.2)] * 5, USUAL + SLOW, r"a sleep was 0.100 s only, not 0.2 s"),
        (SLEEPS, USUAL + commits(11, 16, 1.0, STEP_SECONDS), "before the rank that slept in it woke up"),
        (
            [(step, DELAY_SECONDS, 1.0) for step in range(11, 16)],
            USUAL + commits(11, 16, 1.0, 0.05),
            "steps took 0.050 s, though a rank slept 0.200 s in each",
        ),
        (SLEEPS, USUAL, r"step 11 was not committed"),
    ],
    ids=["no sleep", "too short", "not waited for", "no slower", "no step"],
)
def test_what_does_not_fit_is_no_evidence(reports, events, reason):
    with pytest.raises(EffectNotSeen, match=reason):
        play(SlowData(DelayParameters()), reports, events)


def uneven(first, last, began, seconds, by_seconds):
    """Commits of steps that take a little longer and a little less in turns."""
    events = commits(first, last, began, seconds)
    for event in events[::2]:
        event.fields["committed_monotonic"] += by_seconds
    return events


def test_a_sleep_within_what_steps_differ_by_is_no_evidence():
    seconds = STEP_SECONDS + 0.005
    slow = commits(11, 16, 1.0, seconds)
    sleeps = [(step, 0.005, 1.0 + (step - 11) * seconds + 0.005) for step in range(11, 16)]
    fault = DelayParameters(delay="5ms")
    with pytest.raises(EffectNotSeen, match="within the noise"):
        play(SlowData(fault), sleeps, uneven(1, 10, 0.0, STEP_SECONDS, 0.01) + slow)
    evidence, _ = play(SlowData(fault), sleeps, USUAL + slow)
    assert "0.105 s instead of 0.100 s" in evidence["summary"]


def test_not_begun_it_is_not_verified():
    with pytest.raises(EffectNotSeen, match="started in no rank"):
        play(SlowData(DelayParameters()), SLEEPS, USUAL + SLOW, begins=False)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"delay": "0s"}, "no time to do anything"),
        ({"delay": "0.001ms"}, "cannot be told from the noise"),
        ({"delay": "2min"}, "pause-process"),
        ({"delay": "5steps"}, "is no time"),
        ({"delay": "100ms", "jitter": "200ms"}, "more than the delay"),
    ],
)
def test_what_cannot_be_is_refused(parameters, reason):
    with pytest.raises((UsageError, ValueError), match=reason):
        DelayParameters.model_validate(parameters)


def test_parameters_come_back_from_what_the_plan_says():
    parameters = DelayParameters.model_validate({"delay": "150ms", "jitter": "20ms"})
    assert DelayParameters.model_validate(parameters.model_dump(mode="json")) == parameters


def test_undo_is_the_same_whenever_it_is_called():
    record = {"ranks": [1], "effect": EFFECT, "phase": "data"}
    assert SlowData.undo(record) == SlowData.undo(record)
    assert Act(undo_record=record).ranks == ()
