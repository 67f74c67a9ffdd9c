"""The order of the injector's acts, whom it holds, and that it lets go whatever happens."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

import chaos.injection.injector
from chaos.errors import EffectNotSeen, EnvironmentFailure, HealError, TargetNotFound
from chaos.faults.base import Act, Fault, FaultContext, OwnedProcess
from chaos.faults.endings import Recognised
from chaos.faults.watch import Watch
from chaos.in_process.protocol import AgentSession, At, Holds, Release, SnapshotsOf
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident
from chaos.undo.ledger import Ledger, read_ledger
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

pytestmark = pytest.mark.unit

ALL_RANKS = frozenset(range(4))
CLUSTER = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=2, num_microbatches=2)
RECORD = {"rule": 42}
PROCESS = OwnedProcess("rank", ProcessId(2_000_000_000, 1), rank=2, node=1)


def create_fault(trace, *, failing=None, error=None, lasting=False, verify_seconds=0.0, shows_when_released=False):
    """A kind of fault that notes its acts in `trace`; the act called `failing` raises `error`."""

    def note(act):
        trace.append(act)
        if act == failing:
            raise error

    class Noting(Fault):
        """Notes what is asked of it."""

        kind, scope, fidelity, undo_summary = "note-acts", "rank", "real", "notes that, too"
        has_lifetime = lasting

        def prepare(self, target, context):
            note("prepare")
            self.shows_when_released = shows_when_released
            return Act((PROCESS,), RECORD)

        async def apply(self, act, context):
            note("apply")

        async def verify(self, act, context, timeout_seconds):
            assert timeout_seconds > 0
            # Others get their turn meanwhile, as with a real wait.
            await asyncio.sleep(verify_seconds)
            note("verify")
            return {"summary": "seen"}

        async def lift(self, act, context):
            if failing == "lift":
                note("lift")

        @classmethod
        def undo(cls, record):
            assert record == RECORD
            note("undo")
            return {"undone": "all"}

    return Noting


def incident(number=0, *, ranks=(2,), role=None, trigger=None, is_loss=False):
    target = ResolvedTarget(ranks=ranks, role=role)
    return Incident(
        incident=number,
        fault="note-acts",
        is_loss=is_loss,
        parameters={},
        target=target,
        target_text=str(target),
        trigger=trigger or Trigger(step=5, phase="backward"),
        repair=None,
    )


class Stage:
    """An injector with all that it acts on; `trace` is what happened, in order."""

    def __init__(self, folder, *incidents, may_fire=None, cluster=None, **failure):
        self.trace = []
        self.events = []
        self.path = folder / "ledger.jsonl"
        self.ledger = NotingLedger(self.path, self.trace)
        faults = {"note-acts": create_fault(self.trace, **failure)}
        self.sessions = AgentSessions()
        self.watch = Watch()
        context = FaultContext(
            processes=None, inside=self.sessions, watch=self.watch, run_folder=folder, cluster=cluster
        )
        self.injector = Injector(
            incidents or [incident()],
            faults,
            ALL_RANKS,
            self.watch,
            self.sessions,
            Hosts([LocalExecutor(faults, self.ledger, context)]),
            self.emit,
            may_fire=may_fire,
            cluster=cluster,
        )
        # What each agent was told last of where it is to be held.
        self.holds = {}
        self._sessions = {}

    def emit(self, record, *, step=None, monotonic_seconds=None):
        self.trace.append(record.KIND)
        self.events.append((record.KIND, step, record.to_fields()))

    def arrive(self, place, step=5, phase="backward"):
        """A rank, or a snapshot process, comes to a hold."""
        self.connect(place)
        self.injector.on_message(self._sessions[place], At(step, phase))

    def connect(self, place):
        """The agent at `place` says hello, unless it has."""
        if place not in self._sessions:
            node = place.node if isinstance(place, SnapshotsOf) else 0
            self._sessions[place] = AgentSession(place, node, 1, None, lambda message: self._hear(place, message))
            self.injector.connected(self._sessions[place])

    def _hear(self, rank, message):
        if isinstance(message, Release):
            self.trace.append(f"release {rank}")
        if isinstance(message, Holds | Release):
            self.holds[rank] = list(message.holds)

    def play(self, *acts):
        """Run `acts`, each followed by a turn of the loop, then the end of the job."""

        async def run():
            self.injector.start()
            for act in acts:
                act()
                await asyncio.sleep(0)
            await self.injector.finish()

        with self.ledger:
            asyncio.run(run())

    def fields(self, kind):
        (found,) = (fields for name, _, fields in self.events if name == kind)
        return found


class NotingLedger(Ledger):
    def __init__(self, path, trace):
        super().__init__(path)
        self._trace = trace

    def _write(self, incident, fault, state, record):
        super()._write(incident, fault, state, record)
        self._trace.append(state)


def test_a_fault_may_learn_where_it_acts_that_its_effect_shows_only_when_ranks_continue(tmp_path):
    stage = Stage(tmp_path, shows_when_released=True)
    stage.play(lambda: stage.arrive(2))
    assert stage.trace[4:8] == ["injected", "release 2", "released", "applied"]
    assert stage.trace[-4:] == ["verified", "undo", "struck", "undone"]


def test_the_order_of_acts(tmp_path):
    stage = Stage(tmp_path)
    stage.play(lambda: stage.arrive(2))
    assert stage.trace == [
        "held",
        "prepare",
        "prepared",
        "apply",
        "injected",
        "applied",
        "verify",
        "verified",
        "release 2",
        "released",
        "undo",
        "struck",
        "undone",
    ]
    assert {step for _, step, _ in stage.events} == {5}
    assert stage.fields("held") == {"incident": 0, "phase": "backward", "held_rank": 2}
    assert stage.fields("injected") == {
        "incident": 0,
        "fault": "note-acts",
        "is_loss": False,
        "goes_on": False,
        "target": "rank=2",
        "phase": "backward",
        "ranks": [2],
        "nodes": [],
        "held_ranks": [2],
        "processes": [PROCESS.to_dict()],
        "links": [],
        "parameters": {},
    }
    assert stage.fields("verified")["evidence"] == {"summary": "seen"}
    assert stage.fields("released")["ranks"] == [2]
    assert read_ledger(stage.path).pending == ()
    assert json.loads(stage.path.read_text().splitlines()[0])["record"] == RECORD


@pytest.mark.parametrize(("verify_seconds", "is_longer"), [(0.2, True), (0.0, False)])
def test_a_fault_that_outlasts_its_lifetime_to_be_seen_is_told(tmp_path, verify_seconds, is_longer):
    lifetime = Duration(seconds=0.01 if is_longer else 1.0)
    stage = Stage(tmp_path, replace(incident(), lifetime=lifetime), lasting=True, verify_seconds=verify_seconds)

    async def run():
        stage.injector.start()
        stage.arrive(2)
        async with asyncio.timeout(60):
            while "undone" not in stage.trace:
                await asyncio.sleep(0.001)
        await stage.injector.finish()

    with stage.ledger:
        asyncio.run(run())
    warned = [fields["message"] for kind, _, fields in stage.events if kind == "warning"]
    longer = "note-acts on rank=2 was to last 0.01s: verifying its effect took longer"
    assert warned == ([longer] if is_longer else [])


NOT_THERE = "rank=2 was not in the job when the job reached step=5,phase=backward, or has no such phase in that step"


@pytest.mark.parametrize(
    ("last_step", "by_chance", "kind", "reason"),
    [
        (
            4,
            {"may_be_left_out": True},
            "unverified",
            "never fired: the job ended before rank=2 came to step=5,phase=backward",
        ),
        (
            5,
            {"may_be_left_out": True},
            "not_due",
            NOT_THERE,
        ),
        (
            5,
            {},
            "unverified",
            f"never fired: {NOT_THERE}",
        ),
        (4, {"is_optional": True}, "not_due", "the job ended before step=5,phase=backward"),
        (
            9,
            {"is_optional": True},
            "not_due",
            NOT_THERE,
        ),
    ],
)
def test_why_it_never_fired(tmp_path, last_step, by_chance, kind, reason):
    stage = Stage(tmp_path, replace(incident(), **by_chance))
    stage.play(lambda: stage.watch.feed(Event("step_committed", "rank", 0.0, 0.0, 1, step=last_step)))
    assert stage.fields(kind)["reason"] == reason


@pytest.mark.parametrize(("rank", "step", "phase"), [(1, 5, "backward"), (2, 4, "backward"), (2, 5, "forward")])
def test_whoever_is_not_at_the_trigger_is_let_through(tmp_path, rank, step, phase):
    stage = Stage(tmp_path)
    stage.play(lambda: stage.arrive(rank, step, phase))
    assert stage.trace == [f"release {rank}", "unverified"]
    assert stage.fields("unverified")["why"]["code"] == "never_fired"
    assert "rank=2" in stage.fields("unverified")["reason"]


def test_holds_are_told_to_the_targets_agents_until_it_has_fired(tmp_path):
    timed = incident(1, trigger=Trigger(at_seconds=3600.0))
    stage = Stage(tmp_path, incident(), timed, incident(2, ranks=(), role="coordinator", trigger=Trigger(step=9)))
    stage.connect(1)
    stage.connect(2)
    assert stage.holds == {1: [(9, "forward")], 2: [(5, "backward"), (9, "forward")]}
    told = []
    stage.play(lambda: stage.arrive(2), *[lambda: None] * 5, lambda: told.append(stage.holds[2]))
    assert told == [[(9, "forward")]]


def test_it_fires_once_only(tmp_path):
    stage = Stage(tmp_path)
    stage.play(lambda: stage.arrive(2), lambda: stage.arrive(2))
    assert stage.trace.count("apply") == 1
    assert stage.trace.count("release 2") == 2


def test_it_waits_for_all_ranks_of_the_target(tmp_path):
    stage = Stage(tmp_path, incident(ranks=(1, 2)))
    stage.play(
        lambda: stage.arrive(1),
        lambda: stage.trace.append("one is not enough"),
        lambda: stage.arrive(2),
    )
    assert stage.trace[:4] == ["held", "one is not enough", "held", "prepare"]
    assert stage.trace[-6:] == ["release 1", "release 2", "released", "undo", "struck", "undone"]
    assert stage.fields("injected")["held_ranks"] == [1, 2]


def test_it_does_not_wait_for_ever_for_ranks_that_wait_for_a_held_one(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos.injection.injector, "HOLD_GRACE_SECONDS", 0.01)
    stage = Stage(tmp_path, incident(ranks=(1, 2)))

    async def run():
        stage.arrive(1)
        while "undone" not in stage.trace:
            await asyncio.sleep(0.001)
        stage.arrive(2)
        await stage.injector.finish()

    with stage.ledger:
        asyncio.run(asyncio.wait_for(run(), 10.0))
    assert stage.fields("injected")["held_ranks"] == [1]
    assert stage.trace[-1] == "release 2", "who comes late is not held"


@pytest.mark.parametrize("step", [6, 9])
def test_at_an_encoding_the_snapshot_processes_of_all_of_its_nodes_are_held(tmp_path, step):
    """Of the step that was said, or of the first one after it that is encoded."""
    stage = Stage(tmp_path, incident(ranks=(1, 2), trigger=Trigger(step=6, phase="encode")), cluster=CLUSTER)
    stage.play(
        lambda: stage.arrive(1, step, "forward"),
        lambda: stage.arrive(SnapshotsOf(1), 4, "encode"),
        lambda: stage.arrive(SnapshotsOf(1), step, "encode"),
        lambda: stage.trace.append("one is not enough"),
        lambda: stage.arrive(SnapshotsOf(0), step, "encode"),
    )
    begun = stage.trace.index("held")
    assert stage.trace[begun : begun + 4] == ["held", "one is not enough", "held", "prepare"]
    injected = stage.fields("injected")
    assert (injected["held_ranks"], injected["held_nodes"]) == ([], [0, 1])
    assert stage.fields("released")["nodes"] == [0, 1]
    assert {happened for _, happened, _ in stage.events} == {step}


def test_a_snapshot_that_is_not_taken_any_more_is_said(tmp_path):
    stage = Stage(tmp_path, incident(trigger=Trigger(step=6, phase="snapshot")))
    stage.play(lambda: stage.arrive(2, 5, "snapshot"), lambda: stage.arrive(2, 6, "forward"))
    assert "no snapshot of step 6 or a later one was copied by rank=2" in stage.fields("unverified")["reason"]


def test_a_target_without_ranks_has_any_rank_as_its_witness(tmp_path):
    stage = Stage(tmp_path, incident(ranks=(), role="coordinator"))
    stage.play(lambda: stage.arrive(3), lambda: stage.arrive(0))
    assert stage.fields("injected")["held_ranks"] == [3]
    assert stage.fields("injected")["target"] == "role=coordinator"
    assert stage.trace.count("apply") == 1


def test_two_incidents_at_one_place_both_fire(tmp_path):
    stage = Stage(tmp_path, incident(0), incident(1))
    stage.play(lambda: stage.arrive(2))
    assert stage.trace.count("apply") == 2
    assert sorted(fields["incident"] for kind, _, fields in stage.events if kind == "verified") == [0, 1]
    assert stage.trace.count("release 2") == 1, "a second word would let the rank through its next hold"
    last_act = max(index for index, act in enumerate(stage.trace) if act == "verified")
    assert stage.trace.index("release 2") > last_act, "it goes on only when both have been seen"


@pytest.mark.parametrize(
    ("kind", "last_step", "step"),
    [
        ("step_committed", 7, 8),
        # The first step has begun, and is not committed.
        ("regrouped", 0, 1),
        ("training_entered", None, 1),
        # None has begun.
        ("rank_started", None, None),
    ],
)
def test_a_fault_at_a_time_belongs_to_the_step_under_way_if_there_is_one(tmp_path, kind, last_step, step):
    stage = Stage(tmp_path, incident(trigger=Trigger(at_seconds=0.02)))

    async def run():
        stage.injector.start()
        stage.injector.on_event(Event(kind, "rank", 0.0, 0.0, 1, step=last_step))
        while "undone" not in stage.trace:
            await asyncio.sleep(0.001)
        await stage.injector.finish()

    with stage.ledger:
        asyncio.run(asyncio.wait_for(run(), 10.0))
    assert {told for _, told, _ in stage.events} == {step}
    assert stage.fields("injected")["held_ranks"] == []


def test_a_target_that_is_gone_is_said_and_nothing_is_done(tmp_path):
    stage = Stage(tmp_path, failing="prepare", error=TargetNotFound("rank 2 is gone"))
    stage.play(lambda: stage.arrive(2))
    assert stage.trace == ["held", "prepare", "unverified", "release 2", "released"]
    assert stage.fields("unverified")["reason"] == "rank 2 is gone"
    assert stage.path.read_bytes() == b""


def test_without_its_undo_record_on_disk_nothing_is_applied(tmp_path, monkeypatch):
    stage = Stage(tmp_path)

    def refuse(*_):
        raise EnvironmentFailure("no space left")

    monkeypatch.setattr(stage.ledger, "prepare", refuse)
    stage.play(lambda: stage.arrive(2))
    assert stage.trace == ["held", "prepare", "unverified", "release 2", "released"]
    assert stage.fields("unverified")["reason"] == "no space left"


@pytest.mark.parametrize("failing", ["apply", "verify"])
def test_what_was_not_seen_is_undone_all_the_same(tmp_path, failing):
    stage = Stage(tmp_path, failing=failing, error=EffectNotSeen("still there"))
    stage.play(lambda: stage.arrive(2))
    assert "verified" not in stage.trace
    assert stage.fields("unverified")["reason"] == "still there"
    assert ("injected" in stage.trace) == (failing == "verify")
    assert stage.trace.index(failing) < stage.trace.index("undo") < stage.trace.index("struck")
    assert stage.trace[-2:] == ["release 2", "released"]
    assert read_ledger(stage.path).pending == ()


def test_what_cannot_be_undone_stays_pending(tmp_path):
    stage = Stage(tmp_path, failing="undo", error=HealError("the rule is still there"))
    stage.play(lambda: stage.arrive(2))
    assert "verified" in stage.trace
    assert stage.fields("undo_failed")["reason"] == "the rule is still there"
    assert stage.trace[-4:] == ["release 2", "released", "undo", "undo_failed"]
    (pending,) = read_ledger(stage.path).pending
    assert (pending.incident, pending.record) == (0, RECORD)


@pytest.mark.parametrize("error", [HealError("rank 2 does not answer"), KeyError("handle")], ids=["failed", "broken"])
def test_what_the_rank_does_not_end_stays_pending_and_the_rest_is_undone(tmp_path, error):
    stage = Stage(tmp_path, failing="lift", error=error)
    stage.play(lambda: stage.arrive(2))
    assert stage.trace[-3:] == ["lift", "undo", "undo_failed"]
    assert str(error.args[0]) in stage.fields("undo_failed")["reason"]
    assert [entry.incident for entry in read_ledger(stage.path).pending] == [0], "it is struck when the rank is gone"


def test_an_undo_that_breaks_down_is_told_and_stays_pending(tmp_path):
    stage = Stage(tmp_path, failing="undo", error=KeyError("pid"))
    stage.play(lambda: stage.arrive(2))
    assert "KeyError('pid')" in stage.fields("undo_failed")["reason"]
    assert len(read_ledger(stage.path).pending) == 1


def test_all_are_undone_when_one_breaks_down(tmp_path):
    stage = Stage(tmp_path, incident(0), incident(1, ranks=(3,)), failing="apply", error=ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        stage.play(lambda: stage.arrive(2), lambda: stage.arrive(3))
    assert stage.trace.count("undone") == 2
    assert read_ledger(stage.path).pending == ()


LIMIT = Reason("max_ranks", ranks=2, limit=1)


def test_beyond_the_caps_nothing_is_done(tmp_path):
    asked = []

    def may_fire(affected, firing):
        asked.append((affected, firing.incident))
        return LIMIT if affected else None

    loss, other = incident(0, ranks=(1,), is_loss=True), incident(1, ranks=(2,), trigger=Trigger(step=6))
    stage = Stage(tmp_path, loss, other, incident(2, ranks=(3,), trigger=Trigger(step=9)), may_fire=may_fire)

    async def run():
        for rank, step, phase in ((1, 5, "backward"), (2, 6, "forward"), (3, 9, "forward")):
            if step == 9:
                back = {"ranks": [1]}
                stage.injector.on_event(Event("rejoined", "coordinator", 0.0, 0.0, 1, fields=back))
            num_asked = len(asked)
            stage.arrive(rank, step, phase)
            while len(asked) == num_asked or stage.trace.count("released") < len(asked):
                await asyncio.sleep(0.001)
        await stage.injector.finish()

    with stage.ledger:
        asyncio.run(asyncio.wait_for(run(), 10.0))
    assert asked == [(frozenset(), 0), (frozenset({1}), 1), (frozenset(), 2)], "a loss counts until its rank is back"
    told = stage.fields("unverified")
    assert told["why"] == {"code": "not_allowed", "why": to_json(LIMIT)}
    assert told["reason"] == "not fired: 2 ranks would be affected at once, more than max_ranks 1"
    assert stage.trace.count("apply") == 2
    assert {json.loads(line)["incident"] for line in stage.path.read_text().splitlines()} == {0, 2}


def test_what_chance_put_beyond_the_caps_is_left_out(tmp_path):
    drawn = replace(incident(), may_be_left_out=True)
    stage = Stage(tmp_path, drawn, may_fire=lambda affected, firing: LIMIT)
    stage.play(lambda: stage.arrive(2))
    assert stage.trace == ["held", "not_due", "release 2", "released"]
    assert stage.fields("not_due")["why"] == to_json(LIMIT)


def test_a_fault_that_breaks_down_is_undone_and_lets_go(tmp_path):
    stage = Stage(tmp_path, failing="apply", error=ZeroDivisionError("a mistake in the fault"))
    with pytest.raises(ZeroDivisionError):
        stage.play(lambda: stage.arrive(2))
    assert "undone" in stage.trace
    assert stage.trace[-2:] == ["release 2", "released"]
    assert read_ledger(stage.path).pending == ()


def test_whoever_is_held_when_the_job_ends_is_let_go(tmp_path):
    stage = Stage(tmp_path, incident(ranks=(1, 2)))
    stage.play(lambda: stage.arrive(1))
    assert stage.trace == ["held", "release 1", "unverified"]


def end_of_job(code=1):
    fields = {"role": "rank", "exited_pid": 7, "exit": code, "exited_rank": 2, "rank_attempt": 1}
    now = time.monotonic()
    return Event("process_exited", "conductor", now, now, 1, fields=fields)


@pytest.mark.parametrize(("is_named", "outcome"), [(True, "verified"), (False, "unverified")])
def test_what_ended_the_job_verifies_the_fault_that_it_names(tmp_path, is_named, outcome):
    """The effect that was waited for did not come to pass: a rank was gone before."""
    stage = Stage(tmp_path, failing="verify", error=EffectNotSeen("the rank is gone"), lasting=True)

    def recognises(self, act, context, endings):
        return Recognised({"summary": "it died of it"}, 7.0) if is_named and endings.end_of(2) is not None else None

    stage.injector._faults["note-acts"].recognises = recognises

    stage.play(lambda: stage.arrive(2), lambda: stage.injector.on_event(end_of_job()))
    told = {kind: fields for kind, _, fields in stage.events}
    assert outcome in told and len({"verified", "unverified"} & told.keys()) == 1
    if is_named:
        assert told["verified"]["evidence"] == {"summary": "it died of it"}
        assert told["verified"]["took_effect_monotonic"] == 7.0
    assert "undone" in stage.trace


def test_what_ended_before_the_fault_does_not_verify_it(tmp_path):
    stage = Stage(tmp_path, failing="verify", error=EffectNotSeen("the rank is gone"), lasting=True)
    seen = []
    stage.injector._faults["note-acts"].recognises = lambda self, act, context, endings: seen.append(endings) or None

    stage.play(lambda: stage.injector.on_event(end_of_job()), lambda: stage.arrive(2))
    assert seen and all(not endings.exits for endings in seen)
