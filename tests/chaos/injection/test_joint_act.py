"""An incident on two hosts: recorded on both before it is applied on either, and whatever fails, undone on both."""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import EffectNotSeen, EnvironmentFailure, HealError, InjectionError, TargetNotFound
from chaos.faults.base import Act, Fault, FaultContext, OwnedProcess
from chaos.faults.watch import Watch
from chaos.in_process.protocol import AgentSession, At, Release
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.injection.orders import Refused, word_of
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from chaos.undo.ledger import Ledger, read_ledger
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

pytestmark = pytest.mark.unit

HOSTS = ("alpha", "beta")
CLUSTER = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=2, num_microbatches=2)
STEPS = ("look", "prepare", "record", "apply", "verify", "lift", "undo")
ERRORS = {
    "look": InjectionError,
    "prepare": TargetNotFound,
    "record": EnvironmentFailure,
    "apply": InjectionError,
    "verify": EffectNotSeen,
    "lift": HealError,
    "undo": HealError,
}
# What an order can come to: an error of the tool's, a mistake in the fault, and the death of the executor's process
# before it has carried the order out, or before its answer has left.
SILENT = Refused.because(Reason("host_silent", host="the host", loss="it is dead"), "silent")
OUTCOMES = ("refuses", "breaks", "dies before", "dies after")


class Part:
    """The executor of one host, what is active there, and what goes wrong at which order."""

    def __init__(self, world, folder, host, failures):
        self.world, self.host, self.failures = world, host, dict(failures)
        self.path = folder / f"{host}.jsonl"
        self.is_active, self.is_dead = False, False
        self.ledger = PartLedger(self)
        context = FaultContext(processes=None, inside=None, watch=Watch(), run_folder=folder)
        self.kind = create_fault(self)
        self._executor = LocalExecutor({"scripted": self.kind}, self.ledger, context, host=host)

    def come_to(self, step):
        """What goes wrong in the fault itself at `step`."""
        self.world.trace.append((self.host, step))
        match self.failures.get(step):
            case "refuses":
                raise ERRORS[step](f"no {step} here")
            case "breaks":
                raise KeyError(step)

    def entry(self):
        return read_ledger(self.path).of(0)

    # ---- as an executor ----

    async def obey(self, order):
        step = word_of(order)
        self.is_dead = self.is_dead or self.failures.get(step) == "dies before"
        if not self.is_dead:
            answer = await self._executor.obey(order)
            # Others get their turn meanwhile, as with a real stream.
            await asyncio.sleep(0)
        self.is_dead = self.is_dead or self.failures.get(step) == "dies after"
        return SILENT if self.is_dead else answer

    def on_event(self, event):
        self._executor.on_event(event)

    def end_of_job(self):
        self._executor.end_of_job()


class PartLedger(Ledger):
    def __init__(self, part):
        super().__init__(part.path)
        self._part = part

    def prepare(self, *arguments):
        self._part.come_to("record")
        super().prepare(*arguments)


def create_fault(part):
    class Scripted(Fault):
        """Does what the part's failures say."""

        kind, scope, fidelity, undo_summary, has_lifetime = "scripted", "rank", "real", "it is over", False

        async def look(self, target, context):
            part.come_to("look")

        def prepare(self, target, context):
            part.come_to("prepare")
            processes = (OwnedProcess("rank", ProcessId(2_000_000_000, 1), rank=rank) for rank in target.ranks)
            return Act(tuple(processes), {"host": part.host})

        async def apply(self, act, context):
            # Every host has its record on disk before anything is done on one.
            for other in part.world.parts:
                assert other.entry() is not None or other.host not in part.world.concerned, (part.host, other.host)
            part.is_active = True
            part.come_to("apply")

        async def verify(self, act, context, timeout_seconds):
            await asyncio.sleep(0)
            part.come_to("verify")
            return {"summary": f"seen on {part.host}"}

        async def lift(self, act, context):
            part.come_to("lift")

        @classmethod
        def undo(cls, record):
            assert record == {"host": part.host}
            part.come_to("undo")
            part.is_active = False
            return {"undone": part.host}

    return Scripted


class World:
    """Two hosts, and an injector with one incident on a rank of each."""

    def __init__(self, folder, failures, *, target=None, concerned=HOSTS):
        self.concerned = concerned
        self.trace, self.events, self.let_go = [], [], []
        self.parts = []
        for host in HOSTS:
            self.parts.append(Part(self, folder, host, failures.get(host, {})))
        target = target or ResolvedTarget(ranks=(1, 2))
        incident = Incident(0, "scripted", False, {}, target, str(target), Trigger(5), None)
        self.sessions = AgentSessions()
        self.injector = Injector(
            [incident],
            {"scripted": self.parts[0].kind},
            frozenset(range(4)),
            Watch(),
            self.sessions,
            Hosts(self.parts, CLUSTER, lambda node: HOSTS[node]),
            self._emit,
            cluster=CLUSTER,
        )

    def _emit(self, record, *, step=None, monotonic_seconds=None):
        self.events.append((record.KIND, record.to_fields()))

    def of(self, kind):
        return [fields for name, fields in self.events if name == kind]

    def play(self):
        """Hold both ranks at the trigger, and see the run to its end; returns the mistake that came out, if any."""

        async def run():
            self.injector.start()
            for rank in (1, 2):
                session = AgentSession(rank, rank // 2, 1, None, lambda message, rank=rank: self._hear(rank, message))
                self.injector.connected(session)
                self.injector.on_message(session, At(5, "forward"))
            # Until the ranks have been let go, or never will be.
            async with asyncio.timeout(30):
                while len(self.let_go) < 2:
                    await asyncio.sleep(0)
            await self.injector.finish()

        with ExitStack() as ledgers:
            for part in self.parts:
                ledgers.enter_context(part.ledger)
            try:
                asyncio.run(run())
            except KeyError as mistake:
                return mistake
        return None

    def _hear(self, rank, message):
        if isinstance(message, Release):
            self.let_go.append(rank)

    def heal(self):
        """As the watchdogs of dead executors, and `chaos heal`, do."""
        for part in self.parts:
            part.failures.clear()
            if (entry := part.entry()) is not None and entry.state != "struck":
                with Ledger(part.path, by="heal") as ledger:
                    ledger.undo(0, "scripted", entry.record, part.kind.undo)


def play(failures, **options):
    # In memory: each of many examples syncs its ledgers.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        world = World(Path(folder), failures, **options)
        mistake = world.play()
        states = {part.host: None if part.entry() is None else part.entry().state for part in world.parts}
        active = {part.host for part in world.parts if part.is_active}
        world.heal()
        return world, mistake, states, active


ONE_HOST = st.dictionaries(st.sampled_from(STEPS), st.sampled_from(OUTCOMES), max_size=2)


@given(st.fixed_dictionaries(dict.fromkeys(HOSTS, ONE_HOST)))
def test_whatever_fails_on_a_host_nothing_is_active_without_its_record(failures):
    world, mistake, states, active = play(failures)
    # Applied, and not undone: then the ledger of that host says so, and whoever heals undoes it.
    assert all(states[host] in ("prepared", "applied") for host in active), (states, active)
    assert not any(part.is_active for part in world.parts), "what is pending can be healed"
    alive = [part for part in world.parts if not part.is_dead]
    for part in alive:
        ends_well = not {"lift", "undo"} & failures[part.host].keys()
        assert not ends_well or states[part.host] in (None, "struck"), "who can undo has undone"
    # Both ranks are let go, once, and there is one verdict.
    assert sorted(world.let_go) == [1, 2]
    before_the_end = [step for host in HOSTS for step in failures[host] if step not in ("lift", "undo")]
    verdicts = [kind for kind, _ in world.events if kind in ("verified", "unverified")]
    assert verdicts == (["verified"] if not before_the_end else ["unverified"] if mistake is None else [])
    # What became of the undo is told once, if there was anything to undo that the injector knew of.
    told = [kind for kind, _ in world.events if kind in ("undone", "undo_failed")]
    is_closed = all(states[part.host] in (None, "struck") for part in alive)
    if told == ["undone"]:
        assert is_closed
    elif told == ["undo_failed"]:
        assert not is_closed or len(alive) < len(HOSTS)
    else:
        assert told == []
        assert mistake is not None or all(states[part.host] is None for part in alive)


def test_both_hosts_are_prepared_and_recorded_before_either_applies():
    world, mistake, states, _ = play({})
    assert mistake is None and set(states.values()) == {"struck"}
    steps = [step for _, step in world.trace]
    assert steps == [step for step in STEPS for _ in HOSTS]
    (injected,) = world.of("injected")
    assert injected["ranks"] == [1, 2] and len(injected["processes"]) == 2
    (verified,) = world.of("verified")
    assert verified["evidence"]["summary"] == "alpha: seen on alpha; beta: seen on beta"
    assert verified["evidence"]["hosts"]["beta"] == {"summary": "seen on beta"}
    (undone,) = world.of("undone")
    assert {host: told["undone"] for host, told in undone["evidence"]["hosts"].items()} == {h: h for h in HOSTS}


@pytest.mark.parametrize("step", ["look", "prepare"])
def test_what_one_host_refuses_is_recorded_on_none(step):
    world, _, states, _ = play({"beta": {step: "refuses"}})
    assert set(states.values()) == {None}
    assert world.of("unverified")[0]["reason"] == f"beta: no {step} here"
    assert not world.of("injected") and not world.of("undone")


def test_what_one_host_cannot_record_is_undone_on_the_other():
    world, _, states, _ = play({"beta": {"record": "refuses"}})
    assert states == {"alpha": "struck", "beta": None}
    assert ("alpha", "apply") not in world.trace
    assert not world.of("injected") and len(world.of("undone")) == 1


def test_what_one_host_cannot_apply_is_undone_on_both_and_what_was_done_is_told():
    world, _, states, _ = play({"beta": {"apply": "refuses"}})
    assert set(states.values()) == {"struck"}
    assert world.of("injected")[0]["ranks"] == [1], "a process that was killed there is explained"
    assert world.of("unverified")[0]["reason"] == "beta: no apply here"


def test_ranks_held_for_a_silent_host_are_released_before_the_others_undo():
    world, _, states, _ = play({"beta": {"verify": "dies before"}})
    kinds = [kind for kind, _ in world.events]
    assert kinds.index("released") < kinds.index("undo_failed")
    assert (world.of("unverified")[0]["code"], states["alpha"]) == ("host_silent", "struck")
    assert world.of("undo_failed")[0]["code"] == "host_silent"


def test_a_role_is_where_it_is_found():
    role = ResolvedTarget(role="coordinator")
    world, _, states, _ = play({"alpha": {"prepare": "refuses"}}, target=role, concerned=["beta"])
    assert states == {"alpha": None, "beta": "struck"}
    assert world.of("verified")[0]["evidence"] == {"summary": "seen on beta"}
    world, _, states, _ = play({host: {"prepare": "refuses"} for host in HOSTS}, target=role)
    assert set(states.values()) == {None} and len(world.of("unverified")) == 1


def test_a_target_is_divided_among_the_hosts():
    hosts = Hosts(play({})[0].parts, CLUSTER, lambda node: HOSTS[node])

    def parts(target):
        return [(executor.host, part) for executor, part in hosts.parts(target)]

    assert parts(ResolvedTarget((0, 1), (0,))) == [("alpha", ResolvedTarget((0, 1), (0,)))]
    assert parts(ResolvedTarget((0, 1, 2, 3), (0, 1))) == [
        ("alpha", ResolvedTarget((0, 1), (0,))),
        ("beta", ResolvedTarget((2, 3), (1,))),
    ]
    assert parts(ResolvedTarget((0,), (0, 1))) == [
        ("alpha", ResolvedTarget((0,), (0,))),
        ("beta", ResolvedTarget((), (1,))),
    ], "a node without a rank of its own has a launcher"
    link = ResolvedTarget((1, 2), links=((1, 2),))
    assert parts(link) == [
        ("alpha", ResolvedTarget((1,), links=((1, 2),))),
        ("beta", ResolvedTarget((2,), links=((1, 2),))),
    ]
    assert parts(ResolvedTarget()) == [("alpha", ResolvedTarget())], "a checkpoint is damaged once"
