"""An executor in a process of its own acts for real; killed or stopped in the middle, it leaves nothing behind."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import pytest

from chaos.faults import registry
from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.watch import Watch
from chaos.host.run_files import EVENTS_FILE
from chaos.host.run_processes import HELPER_VARIABLE, RUN_VARIABLE
from chaos.in_process.protocol import AgentSession, At, Release
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.injection.orders import (
    Applied,
    Apply,
    Lift,
    Look,
    Looked,
    Prepare,
    Prepared,
    Record,
    Recorded,
    Refused,
    Undo,
    Undone,
    Verified,
    Verify,
)
from chaos.injection.stream import Open, start_executor
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from chaos.undo import run_registry
from chaos.undo.ledger import Ledger, read_ledger
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.crash

# What is not there by then hangs.
TIMEOUT_SECONDS = 120.0
SHORT_LEASE_SECONDS = 3.0
CLUSTER = Cluster(2, 1, data_parallel=2, pipeline=1, num_layers=2, num_microbatches=2)
CONTENT = bytes(range(256)) * 16
PAUSE, KILL, TRUNCATE = "pause-process", "kill-process", "truncate-checkpoint"
NUMBERS = {"recorded": 3, "applied": 4, "verifying": 5}


class Scene:
    """A folder with a checkpoint of a script, and `sleep` as the process of rank 1."""

    def __init__(self, folder):
        self.folder, self.ledger = folder / "run", folder / "run" / "ledger.jsonl"
        self.log = folder / "executor.log"
        self.checkpoint = folder / "checkpoints" / "model.pt"
        self.run = uuid.uuid4().hex[:16]
        self.started = None
        self._children = []
        self.folder.mkdir()
        self.checkpoint.parent.mkdir()
        # Of before the checkpoint: what was there already is none of the run's.
        (self.folder / EVENTS_FILE).write_text(Event("run_started", "conductor", 1.0, 1.0, 1).to_json() + "\n")
        self.checkpoint.write_bytes(CONTENT)

    def start_target(self, mark=HELPER_VARIABLE):
        """A process of the run; unless `mark` says that it is one of the job's, healing does not end it."""
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, mark: self.run})
        self._children.append(child)
        return ProcessId.of(child.pid)

    async def start(self, *, lease_seconds=60.0, has_watchdog=True):
        """The executor in a process of its own."""
        opening = Open(
            self.run,
            "beta",
            str(self.folder),
            str(self.folder),
            (str(self.checkpoint.parent),),
            str(self.checkpoint.parent),
            keeps_own_checkpoints=True,
            cluster=CLUSTER,
            lease_seconds=lease_seconds,
            has_watchdog=has_watchdog,
        )
        self.started = await start_executor(opening, self.log, on_lapse=print, on_loss=print)
        await self.started.executor.ready()
        return self.started.executor

    def state(self):
        """The state of the newest entry of the ledger, and who wrote it."""
        entry = read_ledger(self.ledger).of(0)
        return None if entry is None else (entry.state, entry.by)

    def end(self):
        for child in self._children:
            child.kill()
            child.wait()
        if self.started is not None:
            with suppress(ProcessLookupError):
                self.started.process.kill()


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    scene = Scene(tmp_path)
    yield scene
    scene.end()


def play(act):
    return asyncio.run(asyncio.wait_for(act, TIMEOUT_SECONDS))


def started(process, rank=1):
    """The event from which an executor knows the process of a rank."""
    fields = {
        "role": "rank",
        "started_pid": process.pid,
        "start_ticks": process.start_ticks,
        "started_rank": rank,
    }
    return Event("process_started", "supervisor", 0.0, 0.0, 1, node=rank, fields=fields)


def orders(kind):
    target = ResolvedTarget() if kind == TRUNCATE else ResolvedTarget(ranks=(1,))
    look = Look(1, 0, kind, target, seed=7)
    return (look, Prepare(2, 0), Record(3, 0), Apply(4, 0), Verify(5, 0), Lift(6, 0), Undo(7, 0))


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.01)


def wait_until(is_so):
    """The same, with the loop of this process at rest."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_SECONDS} s"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", [PAUSE, KILL, TRUNCATE])
def test_it_acts_in_another_process(scene, kind):
    target = scene.start_target(RUN_VARIABLE if kind == KILL else HELPER_VARIABLE)
    seen = []

    async def act():
        executor = await scene.start()
        executor.on_event(started(target))
        answers = []
        for order in orders(kind):
            answers.append(await executor.obey(order))
            seen.append((target.state(), scene.checkpoint.read_bytes() == CONTENT))
        assert scene.started.process.pid != os.getpid()
        return answers, await scene.started.end()

    answers, farewell = play(act())
    assert [type(answer) for answer in answers[:4]] == [Looked, Prepared, Recorded, Applied], answers
    assert isinstance(answers[4], Verified) and isinstance(answers[6], Undone), answers
    assert answers[4].evidence["summary"]
    match kind:
        case "pause-process":
            # Just after the signal the process table may not say so yet.
            is_stopped = [state == "T" for state, _ in seen]
            assert is_stopped[:3] + is_stopped[4:] == [False] * 3 + [True] * 2 + [False]
        case "kill-process":
            assert seen[4][0] in ("Z", "gone") and seen[2][0] == "S"
        case "truncate-checkpoint":
            assert [is_whole for _, is_whole in seen] == [True] * 3 + [False] * 3 + [True]
    assert farewell.is_clean and scene.started.process.returncode == 0
    assert scene.state() == ("struck", "chaos") and run_registry.registered() == ()


def moments():
    """Each healer at each point: with one of two faults for every change, with the other nightly."""
    for number, (healer, point) in enumerate(itertools.product(("watchdog", "heal"), NUMBERS)):
        every, nightly = (PAUSE, TRUNCATE) if number % 2 == 0 else (TRUNCATE, PAUSE)
        yield healer, point, every
        yield pytest.param(healer, point, nightly, marks=pytest.mark.nightly)


@pytest.mark.parametrize(("healer", "point", "kind"), list(moments()))
def test_killed_in_the_middle_it_is_undone(scene, kind, point, healer):
    target = scene.start_target()

    async def act():
        executor = await scene.start(has_watchdog=healer == "watchdog")
        executor.on_event(started(target))
        *before, last = orders(kind)[: NUMBERS[point]]
        for order in before:
            assert not isinstance(await executor.obey(order), Refused)
        answer = asyncio.create_task(executor.obey(last))
        if point != "verifying":
            assert not isinstance(await answer, Refused)
        else:
            # It notes that it was applied before it looks for the effect.
            await until(lambda: scene.state() == ("applied", "chaos"))
        scene.started.process.kill()
        await scene.started.process.wait()
        async with asyncio.timeout(30):
            later = await executor.obey(Undo(7, 0))
            farewell = await scene.started.end()
        return later, farewell, await answer

    later, farewell, _ = play(act())
    assert (later.kind, later.code) == ("silent", "host_silent")
    assert not farewell.is_clean, "whether something is left on that host is not known here"
    if healer == "heal":
        assert read_ledger(scene.ledger).pending and len(run_registry.registered()) == 1
        assert scene.checkpoint.read_bytes() == CONTENT or kind == TRUNCATE
        healed = subprocess.run(
            [sys.executable, "-m", "mecefo_chaos", "heal", "--json"], capture_output=True, text=True, check=False
        )
        assert healed.returncode == 0, healed.stderr
    wait_until(lambda: scene.state() == ("struck", healer) and run_registry.registered() == ())
    assert target.state() != "T" and scene.checkpoint.read_bytes() == CONTENT


LINES = {
    "malformed": b"no message\n",
    "endless": b"x" * (100 << 20),
    "unknown order": b'{"type": "ask", "order": {"type": "explode", "id": 9, "incident": 0}}\n',
    "cut off": b'{"type": "ask", "order": {"type": "un',
}


@pytest.mark.parametrize(
    "line",
    ["endless", "cut off", *(pytest.param(line, marks=pytest.mark.nightly) for line in ("malformed", "unknown order"))],
)
def test_it_undoes_after_a_line_that_it_cannot_read_and_goes(scene, line):
    target = scene.start_target()

    async def act():
        executor = await scene.start()
        executor.on_event(started(target))
        for order in orders(PAUSE)[:5]:
            assert not isinstance(await executor.obey(order), Refused)
        assert target.state() == "T"
        stdin = scene.started.process.stdin
        stdin.write(LINES[line])
        if line == "cut off":
            stdin.write_eof()
        await scene.started.process.wait()
        later = await executor.obey(Undo(7, 0))
        return later, await scene.started.end()

    later, farewell = play(act())
    assert (later.kind, later.code) == ("silent", "host_silent") and not farewell.is_clean
    assert target.state() == "S" and scene.state() == ("struck", "chaos")
    assert scene.started.process.returncode == 1


class Run:
    """An injector with one `pause-process` on `ranks`, each of which is held at its trigger."""

    def __init__(self, executors, ranks):
        self.events, self.released = [], []
        incident = Incident(
            0, PAUSE, False, {}, ResolvedTarget(ranks=ranks), "the ranks", Trigger(5), None, lifetime=None
        )
        self.injector = Injector(
            [incident],
            registry(),
            frozenset(ranks),
            Watch(),
            AgentSessions(),
            Hosts(executors, CLUSTER, lambda node: ("alpha", "beta")[node]),
            self._emit,
        )
        self._ranks = ranks

    def _emit(self, record, *, step=None, monotonic_seconds=None):
        self.events.append((record.KIND, record.to_fields()))

    def of(self, kind):
        return [fields for name, fields in self.events if name == kind]

    def hold(self, *targets):
        for rank, target in zip(self._ranks, targets, strict=True):
            self.injector.on_event(started(target, rank))
            session = AgentSession(rank, rank, 1, None, lambda message, rank=rank: self._hear(rank, message))
            self.injector.connected(session)
            self.injector.on_message(session, At(5, "forward"))

    def _hear(self, rank, message):
        if isinstance(message, Release):
            self.released.append(rank)


def test_the_injector_lives_on_with_an_executor_that_is_killed(scene):
    target = scene.start_target()

    async def act():
        run = Run([await scene.start()], (1,))
        run.hold(target)
        await until(lambda: run.of("injected"))
        assert run.released == []
        scene.started.process.kill()
        await until(lambda: run.of("undo_failed"))
        assert run.released == [1]
        await run.injector.finish()
        await scene.started.end()
        return run

    run = play(act())
    assert [kind for kind, _ in run.events] == ["held", "injected", "released", "undo_failed", "unverified"]
    assert run.of("unverified")[0]["code"] == "host_silent"
    wait_until(lambda: scene.state() == ("struck", "watchdog"))
    assert target.state() != "T"


def test_ranks_held_for_an_executor_that_is_silent_are_released_after_its_lease(scene):
    target = scene.start_target()

    async def act():
        run = Run([await scene.start(lease_seconds=SHORT_LEASE_SECONDS)], (1,))
        run.hold(target)
        await until(lambda: run.of("injected"))
        scene.started.process.send_signal(signal.SIGSTOP)
        await until(lambda: run.released)
        # Its watchdog undoes, and leaves the entry open: it may wake up.
        await until(lambda: scene.state() == ("lapsed", "watchdog"))
        assert target.state() != "T"
        scene.started.process.send_signal(signal.SIGCONT)
        code = await scene.started.process.wait()
        await run.injector.finish()
        await scene.started.end()
        return run, code

    run, code = play(act())
    assert run.of("unverified")[0]["code"] == "host_silent" and code == 1
    assert scene.state()[0] == "struck" and target.state() != "T" and run_registry.registered() == ()


def test_an_executor_that_hears_nothing_undoes_after_its_lease_and_goes(scene):
    target = scene.start_target()

    async def act():
        run = Run([await scene.start(lease_seconds=SHORT_LEASE_SECONDS)], (1,))
        run.hold(target)
        await until(lambda: run.of("verified"))
        # The injector does not run: nothing is sent, and nothing is closed.
        wait_until(lambda: target.state() != "T")
        wait_until(lambda: scene.state() == ("struck", "chaos"))
        code = await scene.started.process.wait()
        await run.injector.finish()
        await scene.started.end()
        return code

    assert play(act()) == 1
    assert "the injector was silent for 3 s" in scene.log.read_text()
    assert run_registry.registered() == ()


@pytest.mark.parametrize("dies", [False, True])
def test_one_incident_on_two_hosts_of_which_one_may_die(scene, tmp_path, dies):
    """Here is host alpha, with the process of rank 0; the executor in a process of its own plays beta."""
    here, there = scene.start_target(), scene.start_target()

    class Processes:
        def rank_processes(self, ranks):
            return (OwnedProcess("rank", here, rank=0, node=0),)

    async def act(ledger):
        context = FaultContext(processes=Processes(), inside=None, watch=Watch(), run_folder=tmp_path)
        alpha = LocalExecutor(registry(), ledger, context, host="alpha")
        run = Run([alpha, await scene.start()], (0, 1))
        run.hold(here, there)
        await until(lambda: run.of("injected"))
        assert read_ledger(tmp_path / "alpha.jsonl").pending and read_ledger(scene.ledger).pending
        if dies:
            scene.started.process.kill()
            await until(lambda: run.of("undo_failed"))
        else:
            await until(lambda: run.of("verified"))
            assert (here.state(), there.state()) == ("T", "T")
        await run.injector.finish()
        farewell = await scene.started.end()
        return run, farewell

    with Ledger(tmp_path / "alpha.jsonl") as ledger:
        run, farewell = play(act(ledger))
    assert sorted(run.released) == [0, 1] and len(run.of("injected")[0]["processes"]) == 2
    assert read_ledger(tmp_path / "alpha.jsonl").of(0).state == "struck"
    wait_until(lambda: scene.state()[0] == "struck")
    assert "T" not in (here.state(), there.state())
    assert farewell.is_clean is not dies
    if dies:
        assert run.of("unverified")[0]["code"] == "host_silent" and not run.of("verified")
    else:
        (verified,), (undone,) = run.of("verified"), run.of("undone")
        assert verified["evidence"]["hosts"].keys() == undone["evidence"]["hosts"].keys() == {"alpha", "beta"}
