"""Gates that end a run: which may, when they do, and that the analysis of the log afterwards says the same."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from chaos.experiment.gate_spec import AbortingGate
from harness.analysis.state import RunState
from harness.analysis.step_ledger import read_steps
from harness.judging import early_end
from harness.judging.early_end import EarlyEnd, can_end_early, check_gates
from harness.judging.gates import Gate, GateError
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized
from tests.harness.synthetic import DETECT_SECONDS, Fault, loss_of, run, shifted

pytestmark = pytest.mark.unit

# What has not come by then does not come.
TIMEOUT_SECONDS = 120.0


class Told:
    """An EarlyEnd fed with a log, and what it came to."""

    def __init__(self, *gates: str) -> None:
        self.ends: list[tuple[str, str]] = []
        self.events: list[Event] = []
        emitter = Emitter(self.events.append, "conductor")
        self._state = RunState()
        self._end = EarlyEnd(
            [AbortingGate(gate) for gate in gates],
            self._state,
            emitter,
            lambda reason, text: self.ends.append((reason, text)),
        )

    def feed(self, events: list[Event]) -> "Told":
        """All of `events` that come before its end, on a loop whose clock has not moved on."""

        async def feed() -> None:
            for event in events:
                self._state.feed(event)
                self._end.feed(event)
                if self.ends:
                    break
            self._end.feed(replace(events[-1], kind="job_ended", job="main"))

        asyncio.run(feed())
        return self

    @property
    def fields(self) -> dict[str, Any]:
        """Of the one event `aborted`."""
        (aborted,) = self.events
        assert aborted.kind == "aborted"
        return dict(aborted.fields)


def now(events: list[Event]) -> list[Event]:
    """The log as if its last event came now, so that no deadline of it lies in the past or the far future."""
    loop = asyncio.new_event_loop()
    shift = loop.time() - events[-1].monotonic_seconds
    loop.close()
    moved = []
    for event in events:
        times = {
            name: event.fields[name] + shift
            for name in ("began_monotonic", "committed_monotonic")
            if name in event.fields
        }
        moved.append(replace(shifted(event, **times), monotonic_seconds=event.monotonic_seconds + shift))
    return moved


@pytest.mark.parametrize(
    "gate",
    [
        "steps_lost == 0",
        "steps_repeated <= 20",
        "samples_lost < 1",
        "unfit_steps == 0",
        "wall_clock < 5min",
        "recovery < 5",
        "recovery max <= 5",
        "progress_seconds < 5",
        "detection < 500ms",
        "step_seconds max < 3",
        "step_seconds min > 1ms",
        "training_loss max < 20",
        "grad_norm max < 20",
        "degraded_layers max <= 4",
    ],
)
def test_what_only_grows_or_only_falls_may_end_a_run(gate: str):
    assert can_end_early(Gate.parse(gate))
    check_gates([AbortingGate(gate)])


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ("throughput_drop <= 40%", "throughput_drop_ratio can rise and fall until the run has ended"),
        ("goodput > 90%", "goodput_ratio can rise and fall"),
        ("unrecovered_incidents == 0", "can rise and fall"),
        ("recovery p95 < 5", "the p95 of recovery_seconds can still fall"),
        ("recovery min < 5", "the min of recovery_seconds can still fall"),
        ("recovery > 5", "recovery_seconds only grows, and may still come to hold '>'"),
        ("recovery == 5", "may still come to hold '=='"),
        ("steps_lost != 0", "may still come to hold '!='"),
        ("steps_lost >= 3", "may still come to hold '>='"),
        ("step_seconds < 3", "step_seconds can rise and fall"),
        ("step_seconds p95 < 3", "of step_seconds only 'max' with '<'"),
        ("step_seconds max > 3", "of step_seconds only 'max' with '<'"),
        ("step_seconds max during < 3", "which steps are during the fault is known when the run has ended"),
        ("throughput min > 3", "throughput is cut into stretches of time when the run has ended"),
    ],
)
def test_what_is_not_certain_before_the_end_is_refused_with_a_sentence(gate: str, why: str):
    check_gates([gate])
    with pytest.raises(GateError, match="cannot end a run early") as refused:
        check_gates(["steps_lost == 0", AbortingGate(gate)])
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("gate", "step", "value"),
    [
        ("training_loss max < 5", 1, loss_of(1)),
        ("training_loss min > 4", next(step for step in range(60) if loss_of(step) < 4), None),
        ("step_seconds max <= 0.11", 20, None),
        ("degraded_layers max < 1", 20, None),
        ("grad_norm max < 1", 1, 1.0),
        ("recovery < 100ms", 20, None),
        ("progress < 100ms", 20, None),
        ("detection < 1ms", None, DETECT_SECONDS),
    ],
)
def test_it_ends_the_run_at_once(gate: str, step: int | None, value: float | None):
    events = run()
    told = Told(gate).feed(events)
    (end,) = told.ends
    assert end[0] == "aborted"
    assert f"gate '{gate}' failed: " in end[1]
    assert told.fields["gate"] == gate
    assert told.fields["reason"] in end[1]
    if step is not None:
        assert told.events[0].step == step
    if value is not None:
        assert told.fields["value"] == pytest.approx(value)
    # The whole log says of the gate what was said of it in the middle.
    (judged,) = (one for one in summarized(run(gates=[gate]))["gates"] if one["expression"] == gate)
    assert judged["passed"] is False


@pytest.mark.parametrize(
    "gate",
    [
        "training_loss max < 6",
        "training_loss min > 1",
        "step_seconds max < 10",
        "degraded_layers max <= 100",
        "recovery < 1",
        "progress < 1",
        "detection <= 1",
        "steps_lost == 0",
        "steps_repeated == 0",
        "samples_lost == 0",
        "unfit_steps == 0",
        "wall_clock < 10min",
    ],
)
def test_what_holds_ends_nothing(gate: str):
    assert Told(gate).feed(now(run(faults=(Fault(), Fault(step=40, node=2))))).ends == []


def test_only_the_main_job_counts():
    events = run()
    worse = [
        shifted(event, loss=99.0) if event.job == "twin" and event.kind == "step_committed" else event
        for event in events
    ]
    assert sum(event.fields.get("loss") == 99.0 for event in worse) == 60
    assert Told("training_loss max < 20").feed(worse).ends == []


def test_losses_that_are_no_numbers_are_left_to_the_end():
    events = [shifted(e, loss=float("nan")) if e.kind == "step_committed" else e for e in run()]
    assert Told("training_loss max < 20").feed(events).ends == []


def test_what_was_done_again_counts_as_lost():
    events = run(faults=())
    steps = [event for event in events if event.kind == "step_committed" and event.job == "main"]
    again = [replace(shifted(e, epoch=5), monotonic_seconds=e.monotonic_seconds) for e in steps[20:23]]
    told = Told("steps_lost <= 1").feed([*steps[:30], *again])
    assert told.fields["value"] == 2
    assert Told("steps_lost <= 3").feed([*steps[:30], *again]).ends == []
    said_again = [shifted(event, repeated=True) for event in again]
    assert Told("steps_lost == 0").feed([*steps[:30], *said_again]).ends == []


def of_a_command(events: list[Event]) -> list[Event]:
    """The events of an external job, which begins with them."""
    return [replace(events[0], kind="job_started", step=None, fields={"runtime": "command"}), *events]


def test_a_command_that_goes_back_tells_its_attempts_by_its_processes():
    """Its steps say no epoch: the analysis takes that of the process, and so does this."""
    steps = [event for event in run(faults=()) if event.kind == "step_committed" and event.job == "main"]
    steps = [shifted(event, epoch=None) for event in steps]
    first, second = (
        replace(steps[0], kind="process_started", fields={"role": "rank", "started_pid": pid, "rank_attempt": attempt})
        for pid, attempt in ((steps[0].pid, 1), (7777, 2))
    )
    again = [replace(event, pid=7777) for event in steps[7:20]]
    log = of_a_command([first, *steps[:10], second, *again])
    repeated = read_steps(log, "main", restarts_by_launcher=True).redone
    assert len(repeated) == 3
    assert Told("steps_repeated <= 2").feed(log).fields["value"] == len(repeated)
    assert Told("steps_repeated <= 3").feed(log).ends == []


def test_a_step_that_was_left_out_as_rejected_is_no_recovery():
    events = [
        shifted(e, skipped=True) if e.kind == "step_committed" and e.job == "main" and e.step in (20, 21) else e
        for e in run()
    ]
    told = Told("recovery_seconds < 300ms").feed(events)
    assert told.fields["value"] == pytest.approx(summarized(events)["incidents"][0]["recovery_seconds"])


def test_and_by_when_they_were_told_where_a_process_replaces_itself():
    steps = [event for event in run(faults=()) if event.kind == "step_committed" and event.job == "main"]
    steps = [shifted(event, epoch=None) for event in steps]
    fields = {"role": "rank", "started_pid": steps[0].pid}
    first, second = (
        replace(event, kind="process_started", fields={**fields, "rank_attempt": attempt}, step=None)
        for event, attempt in ((steps[0], 1), (steps[10], 2))
    )
    again = [replace(event, step=(event.step or 0) - 3) for event in steps[10:20]]
    log = of_a_command([first, *steps[:10], second, *again])
    found = read_steps(log, "main", restarts_by_launcher=True)
    assert [step.epoch for step in found.every] == [1] * 10 + [2] * 10
    assert len(found.redone) == 3
    assert Told("steps_repeated <= 2").feed(log).fields["value"] == 3


def test_wrong_samples_count_as_lost():
    events = [
        shifted(e, samples=e.fields["samples"] - 3) if e.kind == "step_committed" and e.step == 9 else e for e in run()
    ]
    assert Told("samples_lost == 0").feed(events).fields["value"] == 3
    assert Told("samples_lost <= 3").feed(events).ends == []


def test_an_incident_whose_effect_was_not_seen_ends_nothing():
    assert Told("recovery < 1ms").feed(run(faults=(Fault(verified=False),))).ends == []


def test_a_recovery_before_the_effect_was_seen_is_told_when_it_is():
    events = run(cut_off_after_step=40)
    verified = next(event for event in events if event.kind == "verified")
    rest = [event for event in events if event is not verified]
    assert Told("recovery < 1ms").feed(rest).ends == []
    told = Told("recovery < 1ms").feed([*rest, verified])
    (recovery,) = (incident["recovery_seconds"] for incident in summarized(events)["incidents"])
    assert told.fields["value"] == pytest.approx(recovery)
    assert told.fields["incident"] == 0


class TestClock:
    """What does not come at all is found by the clock; the clock here is short, not faked."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        monkeypatch.setattr(early_end, "ARRIVAL_SECONDS", 0.02)

    def fed(self, gate: str, events: list[Event], *, ends: bool = True) -> Told:
        """Told `events`, and waited for the end, or for longer than it would take."""
        told = Told(gate)

        async def feed() -> None:
            for event in events:
                told._state.feed(event)
                told._end.feed(event)
            if not ends:
                await asyncio.sleep(0.3)
                return
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not told.ends:
                    await asyncio.sleep(0.005)

        asyncio.run(feed())
        return told

    def test_a_recovery_that_does_not_come(self):
        events = now(run(faults=(Fault(recovers=False),), ended="interrupted"))
        until = next(i for i, event in enumerate(events) if event.kind == "verified")
        told = self.fed("recovery < 50ms", now(events[: until + 1]))
        assert told.fields["incident"] == 0
        assert told.fields["value"] > 0.05
        assert "recovery_seconds of incident 0 is already" in told.ends[0][1]

    def test_one_that_comes_in_time(self):
        events = run()
        until = next(i for i, e in enumerate(events) if e.kind == "step_committed" and e.step == 20 and e.job == "main")
        assert self.fed("recovery < 200ms", now(events[: until + 1]), ends=False).ends == []

    def test_a_job_that_takes_too_long(self):
        started = [event for event in run() if event.kind == "job_started"][:1]
        assert self.fed("wall_clock < 10ms", now(started)).fields["value"] > 0.01
        ended = replace(now(started)[0], kind="job_ended")
        assert self.fed("wall_clock < 10ms", [*now(started), ended], ends=False).ends == []


def test_without_such_gates_it_does_nothing():
    ends: list[Any] = []
    end = EarlyEnd(["steps_lost == 0"], RunState(), Emitter(ends.append, "conductor"), lambda *said: ends.append(said))
    for event in run():
        end.feed(event)
    assert ends == []


def ended_by(expression: str, recovers: bool = False, **fields: Any) -> list[Event]:
    """A log that ends in step 21, or before one is committed after the fault, because of the gate `expression`."""
    gates = [expression, "goodput > 1%", "step_seconds max < 10"]
    whole = run(gates=gates, faults=(Fault(recovers=recovers),), cut_off_after_step=21)
    events = [
        event for event in whole if event.kind not in ("job_ended", "residue", "run_ended") and event.job == "main"
    ]
    told = {
        "gate": expression,
        "value": 7.0,
        "reason": "recovery_seconds of incident 0 is already 7.000 s",
        "incident": 0,
    }
    last = replace(events[-1], source="conductor", rank=None, step=21)
    tail = [
        replace(last, kind="aborted", fields={**told, **fields}),
        replace(last, kind="residue", step=None, fields={"processes": [], "undo_pending": []}),
        replace(last, kind="job_ended", step=None, fields={"outcome": "stopped", "steps_committed": 21}),
        replace(last, kind="run_ended", step=None, fields={"reason": "aborted", "message": ""}),
    ]
    return [*events, *tail]


def test_a_run_ended_by_a_gate_fails_with_that_gate_named_and_the_rest_open():
    summary = summarized(ended_by("recovery < 1ms"))
    assert (summary["verdict"], summary["exit_code"], summary["status"]) == ("fail", 1, "aborted")
    gates = {gate["expression"]: gate for gate in summary["gates"]}
    assert (gates["recovery < 1ms"]["passed"], gates["recovery < 1ms"]["value"]) == (False, 7.0)
    assert summary["reasons"][0].startswith("gate 'recovery < 1ms' failed: recovery_seconds of incident 0 is already 7")
    ended = {"code": "ended_by_gate", "verdict": "fail", "gate": "recovery < 1ms", "step": 21}
    assert summary["reason_codes"][1] == ended
    # Which option or key made the gate one that ends the run is not known here.
    assert summary["reasons"][1] == (
        "the run was ended after step 21 by gate 'recovery < 1ms': later steps were not measured"
    )
    for name in ("goodput > 1%", "step_seconds max < 10"):
        assert gates[name]["passed"] is None
        assert "the run was ended by a gate before" in gates[name]["reason"]


def test_a_measured_value_counts_before_one_that_was_still_growing():
    summary = summarized(ended_by("recovery < 1ms", recovers=True))
    (judged,) = (gate for gate in summary["gates"] if gate["expression"] == "recovery < 1ms")
    assert (judged["passed"], judged["value"]) == (False, summary["incidents"][0]["recovery_seconds"])
    assert summary["verdict"] == "fail"


def test_one_that_held_after_all_proves_nothing():
    summary = summarized(ended_by("recovery < 100", recovers=True))
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert any("which did not fail in the end" in reason for reason in summary["reasons"])


@pytest.mark.parametrize("fields", [{"gate": None}, {"value": None}, {"value": "x"}, {"reason": None}])
def test_a_damaged_event_is_never_a_pass(fields: dict[str, Any]):
    assert summarized(ended_by("recovery < 1ms", **fields))["verdict"] in ("fail", "inconclusive")
