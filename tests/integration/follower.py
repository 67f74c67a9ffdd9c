"""A script that takes steps and no torch: it tells of them as the agent in an external script does.

`follower.py STEPS [--resume-from FILE] [--wait-in STEP] [--silent] [--stubborn]`: FILE keeps the step of the last
checkpoint, one every fifth step. Started on several nodes, it is one rank on each, which waits for none of the others.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaos.in_process.agent import Agent
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import SocketSink
from mecefo_runtime.system.job_records import RankFinished, RankStarted, StepCommitted
from mecefo_runtime.system.wire import connect, encode

CHECKPOINT_STEPS = 5
STEP_SECONDS = 0.02
CONNECT_SECONDS = 120.0
WAIT_SECONDS = 600.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--resume-from", type=Path)
    parser.add_argument("--wait-in", type=int, help="wait in this step, at the first start that comes to it")
    parser.add_argument("--silent", action="store_true", help="take no steps")
    parser.add_argument("--stubborn", action="store_true", help="take no SIGTERM, and leave a process behind")
    asked = parser.parse_args()
    if asked.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if asked.silent:
        time.sleep(STEP_SECONDS * asked.steps)
        return
    address = os.environ["CHAOS_AGENT"]
    rank, world_size = (int(os.environ.get(name, least)) for name, least in (("CHAOS_NODE", "0"), ("PET_NNODES", "1")))
    agent = Agent(address, rank=rank, node=rank, attempt=1, world_size=world_size)
    connection = connect(address, CONNECT_SECONDS)
    connection.sendall(encode({"role": "events"}))
    emitter = Emitter(SocketSink(connection), "rank", rank=rank, node=rank)
    emitter.emit(RankStarted(world_size=world_size))
    resumed = int(asked.resume_from.read_text()) if asked.resume_from and asked.resume_from.exists() else 0
    for step in range(resumed + 1, asked.steps + 1):
        began = time.monotonic()
        agent.announce(step, "forward")
        if step == asked.wait_in and not (has_waited := Path(f"{asked.resume_from}-has-waited")).exists():
            has_waited.touch()
            time.sleep(WAIT_SECONDS)
        time.sleep(STEP_SECONDS)
        emitter.emit(
            StepCommitted(epoch=1, samples=8, began_monotonic=began, committed_monotonic=time.monotonic()), step=step
        )
        if asked.resume_from and step % CHECKPOINT_STEPS == 0:
            asked.resume_from.write_text(str(step))
    emitter.emit(RankFinished())
    print("all steps done")


if __name__ == "__main__":
    main()
