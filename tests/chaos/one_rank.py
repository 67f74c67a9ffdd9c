"""A rank without a training: a real process whose agent announces steps, and an injector with one incident for it."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.watch import Watch
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident
from chaos.undo.ledger import Ledger, read_ledger
from harness.control.control_server import ControlServer
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

REPOSITORY = Path(__file__).resolve().parents[2]
AT = Trigger(step=5, phase="backward")
# What is not over by then hangs.
TIMEOUT_SECONDS = 300.0
# Of CPU time, for each of the six phases of a step.
PHASE_SECONDS = 0.003
STEP_SECONDS = 6 * PHASE_SECONDS

# Trains until its standard input ends; a line for each step. What `SETUP` says comes first, what `AROUND` says is run
# with the announcement as `announce`.
RANK = """
import json, os, select, sys, time
from chaos.in_process.agent import Agent
from chaos.language.trigger import PHASES

SETUP = {setup!r}
agent = Agent(sys.argv[1], rank=0, node=0, attempt=1)
exec(SETUP)
announce = globals().get("around", agent.announce)
step = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    step += 1
    began = time.monotonic()
    for phase in PHASES[:6]:
        announce(step, phase)
        end = time.thread_time() + {phase_seconds}
        while time.thread_time() < end:
            pass
    print(json.dumps([step, began, time.monotonic()]), flush=True)
"""


class OneRank:
    """Plays one incident on one rank; `events` are what the injector said, in order."""

    def __init__(self, folder, fault, *, lifetime=None, trigger=AT, setup="", **parameters):
        self.folder = folder
        self.events = []
        self.process = None
        self.watch = Watch()
        self._setup = setup
        self._fault = fault
        self._incident = Incident(
            incident=0,
            fault=fault.kind,
            is_loss=fault.is_loss,
            parameters=parameters,
            target=ResolvedTarget(ranks=(0,)),
            target_text="rank=0",
            trigger=trigger,
            repair=None,
            lifetime=None if lifetime is None else Duration.parse(lifetime),
        )

    # ---- what faults ask ----

    def rank_processes(self, ranks):
        return (OwnedProcess("rank", self.process, rank=0, node=0),)

    # ---- what tests ask ----

    def of(self, kind):
        """The fields of the events of `kind`."""
        return [fields for name, fields in self.events if name == kind]

    def evidence(self):
        assert not self.of("unverified"), self.of("unverified")
        (verified,) = self.of("verified")
        assert json.loads(json.dumps(verified["evidence"])) == verified["evidence"]
        return verified["evidence"]

    def reason(self):
        assert not self.of("verified")
        (unverified,) = self.of("unverified")
        return unverified["reason"]

    def play(self, until="undone", then=None):
        """Run it until the injector has emitted `until`, and `then()` is True; returns self."""
        asyncio.run(asyncio.wait_for(self._play(until, then), TIMEOUT_SECONDS))
        return self

    async def _play(self, until, then):
        control = ControlServer(lambda event: None)
        await control.open()
        (self.folder / "logs").mkdir(exist_ok=True)
        with Ledger(self.folder / "ledger.jsonl") as ledger:
            sessions = AgentSessions()
            context = FaultContext(processes=self, inside=sessions, watch=self.watch, run_folder=self.folder)
            faults = {self._fault.kind: self._fault}
            hosts = Hosts([LocalExecutor(faults, ledger, context)])
            injector = Injector([self._incident], faults, frozenset({0}), context.watch, sessions, hosts, self._emit)
            control.agents = injector
            child = await self._start(control.address)
            self.process = ProcessId.of(child.pid)
            follow = asyncio.create_task(self._follow(child, injector))
            injector.start()
            try:
                while not (self.of(until) or self.of("undo_failed")) or (then is not None and not then()):
                    assert not follow.done() or self._incident.is_loss or until != "undone", "the rank has ended"
                    await asyncio.sleep(0.01)
            finally:
                # As at the end of a run: the rank first.
                with suppress(ProcessLookupError):
                    child.kill()
                await follow
                child.stdin.close()
                with suppress(OSError):
                    await child.stdin.wait_closed()
                try:
                    await injector.finish()
                finally:
                    await control.close()
        assert bool(read_ledger(self.folder / "ledger.jsonl").pending) == bool(self.of("undo_failed"))

    async def _start(self, address):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with (self.folder / "logs" / "rank-0.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                RANK.format(setup=self._setup, phase_seconds=PHASE_SECONDS),
                address,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )

    async def _follow(self, child, injector):
        """Its steps and its end, as events of a job."""
        while line := await child.stdout.readline():
            step, began, committed = json.loads(line)
            fields = {"began_monotonic": began, "committed_monotonic": committed}
            injector.on_event(Event("step_committed", "rank", 0.0, committed, child.pid, step=step, fields=fields))
        code = await child.wait()
        fields = {"exited_pid": child.pid, "exit": code}
        injector.on_event(Event("process_exited", "supervisor", 0.0, 0.0, os.getpid(), fields=fields))

    def _emit(self, record, *, step=None, monotonic_seconds=None):
        self.events.append((record.KIND, {**record.to_fields(), "step": step}))
