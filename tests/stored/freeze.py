"""Stores runs and ledgers of the version at hand: `python -m tests.stored.freeze SCRATCH run|ledger [NAME...]`.

Each is a real run below SCRATCH. What is stored already stays as it is: remove it first, and say in the
commit why. Needs root; containers need an engine and the image (`.ci/containers`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecefo_runtime.system.events import Event
from tests import stored
from tests.integration.runs import (
    INSTALLED,
    PATIENT,
    REPOSITORY,
    SLOW_UNTIL_BACK,
    SMALL,
    ChaosRun,
    event_logs,
    paced,
    processes_of_run,
)

SCRIPTS = REPOSITORY / "tests/external/scripts"
# The folder of a stored run, of the environment and of the sources, in the place of those of the machine that made it.
NEUTRAL_FOLDER, NEUTRAL_ENVIRONMENT, NEUTRAL_SOURCES = "/training", "/environment", "/sources"
NEUTRAL_HOST, NEUTRAL_KERNEL = "host-0", "6.1.0"


@dataclass(frozen=True)
class Subject:
    """One run: `chaos run ARGUMENTS [-- COMMAND]`.

    `script` is its train.py, or its experiment.yaml: a file or a text. `is_cut_off`: `chaos` is killed under way.
    """

    arguments: str
    command: str = ""
    script: str | None = None
    exit_code: int = 0
    patch: str = ""
    is_cut_off: bool = False

    def begin(self, folder: Path) -> ChaosRun:
        """Start it in `folder`, by a command line that says nothing of this machine."""
        folder.mkdir(parents=True)
        if self.script is not None:
            is_file = self.script.endswith(".py")
            name = "train.py" if self.command else stored.EXPERIMENT
            (folder / name).write_text((SCRIPTS / self.script).read_text() if is_file else self.script)
        arguments, command = ["run", *shlex.split(self.arguments)], shlex.split(self.command)
        return ChaosRun(folder, arguments, patch=self.patch, command=command)


# ---- runs ----

HALTING = """
name: halting
halt: ["training_loss < 4"]
twin: false
job: {nodes: 2, gpus_per_node: 2, steps: 1000, dilation: "off", strategy: ndb}
faults: [{kind: scale, at: {step: 3}, on: rank=1, where: gradients}]
"""
KILL_RANK_1 = "kill-process --on rank=1 --at step=8"
TWO_NODES = shlex.join(SMALL)
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
RUNS: Mapping[str, Subject] = {
    "kill-node-with-baseline": Subject(
        "kill-node --at step=12 --steps 36 --repair 8steps --gate 'steps_lost == 0' --gate 'throughput_drop <= 95%'"
        " --gate 'recovery_seconds p95 < 60' --gate 'loss_deviation < 50%'",
        patch=PATIENT + SLOW_UNTIL_BACK,
    ),
    "not-finite": Subject("set-nan --on rank=1 --at step=8", f"{TORCHRUN} train.py 16", "ddp.py", exit_code=1),
    "command-restarted": Subject(
        f"{KILL_RANK_1} --gate 'steps_lost <= 1' --gate 'recovery_seconds < 60'",
        f"{TORCHRUN} --max-restarts 3 train.py 16",
        "ddp.py",
    ),
    "command-sharded": Subject(
        f"{KILL_RANK_1} --and slow-data --on rank=0 --at step=14 --for 4steps",
        f"{TORCHRUN} --max-restarts 2 train.py 24 0.05",
        "dcp.py",
    ),
    "command-not-restarted": Subject(KILL_RANK_1, f"{TORCHRUN} train.py 16", "ddp.py", exit_code=1),
    "checkpoint-restarts": Subject(
        "kill-process --at step=8 --every 10steps --count 2 --steps 30 --nodes 2 --dilation off --no-twin"
        " --strategy checkpoint --checkpoint-every 4",
        patch=PATIENT,
    ),
    "snapshots": Subject(
        "kill-node --at step=20 --strategy reft --steps 40 --repair 8steps --no-twin --dilation off",
        patch=PATIENT + SLOW_UNTIL_BACK,
    ),
    "spare-random": Subject(
        "kill-process --on random --at step=10 --strategy spare --steps 30 --seed 3 --repair 8steps --no-twin"
        " --dilation off",
        patch=PATIENT + SLOW_UNTIL_BACK,
    ),
    "links": Subject(
        "partition -p 'groups=0,1|2,3,coordinator' --at step=10 --for 40steps --steps 100 " + TWO_NODES,
        patch=paced(0.05),
    ),
    "containers": Subject(
        f"kill-node --backend docker --on node=1 --at step=10 --steps 40 --repair 10steps {TWO_NODES}"
    ),
    "ended-by-a-gate": Subject(
        "pause-process --on rank=1 --at step=10 --steps 400 --for 2s --abort-unless 'recovery_seconds < 0.5' "
        + TWO_NODES,
        exit_code=1,
        patch=PATIENT,
    ),
    "halted": Subject("experiment.yaml", script=HALTING, exit_code=2, patch=PATIENT),
    "cut-off": Subject(
        f"slow-rank --on rank=2 --at step=8 --for 1h --steps 1000000 {TWO_NODES}",
        exit_code=5,
        patch=PATIENT + paced(0.1),
        is_cut_off=True,
    ),
    "never-fired": Subject("kill-process --at step=500", f"{TORCHRUN} train.py 10", "ddp.py", exit_code=5),
}


def freeze_run(name: str, scratch: Path) -> None:
    """Make the run, unless it is in `scratch`, and store it if a report on what is stored says what the run did."""
    subject = RUNS[name]
    if not (scratch / name).exists():
        with subject.begin(scratch / name) as run:
            if subject.is_cut_off:
                wait_for_steps_after(run.wait_for("verified"), run)
                run.process.kill()
            run.wait()
    (log,) = event_logs(scratch / name / "out")
    folder = log.parent
    shutil.rmtree(scratch / name / "unpacked", ignore_errors=True)
    neutral = neutralizer(scratch / name)
    target = stored.RUNS / name
    target.mkdir(parents=True)
    try:
        events = neutral((folder / stored.EVENTS).read_text())
        (target / f"{stored.EVENTS}.gz").write_bytes(gzip.compress(events.encode(), mtime=0))
        (target / stored.EXPERIMENT).write_text(neutral((folder / stored.EXPERIMENT).read_text()))
        stored.unpack_run(name, scratch / name / "unpacked")
        said = chaos("report", str(scratch / name / "unpacked"), "--json", exit_code=subject.exit_code)
        if not subject.is_cut_off:
            at_its_end = json.loads(neutral((folder / stored.SUMMARY).read_text()))
            assert said == at_its_end, list(stored.differences(at_its_end, said))
        (target / stored.SUMMARY).write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
        refuse_traces(target, events)
    except BaseException:
        shutil.rmtree(target)
        raise
    print(name, said["verdict"], said["exit_code"], (target / f"{stored.EVENTS}.gz").stat().st_size, "bytes of events")
    print("   ", *said["reasons"][:3], sep="\n    ")


def wait_for_steps_after(event: Event, run: ChaosRun) -> None:
    """Wait until the job has committed some steps after `event`."""
    run.wait_for("step_committed", step=(event.step or run.newest_step()) + 5)


def neutralizer(folder: Path) -> Callable[[str], str]:
    """What puts neutral names in the place of the folders and the name of this machine."""
    names = {
        str(folder.resolve()): NEUTRAL_FOLDER,
        sys.prefix: NEUTRAL_ENVIRONMENT,
        sys.base_prefix: NEUTRAL_ENVIRONMENT,
        str(REPOSITORY): NEUTRAL_SOURCES,
        f'"{socket.gethostname()}"': f'"{NEUTRAL_HOST}"',
        os.uname().release: NEUTRAL_KERNEL,
    }

    def neutral(text: str) -> str:
        for name, instead in names.items():
            text = text.replace(name, instead)
        return text

    return neutral


def refuse_traces(folder: Path, *texts: str) -> None:
    """Refuse to store what names this machine, its user, or a folder on it."""
    own = [str(REPOSITORY.parent), str(Path.home()), os.uname().release, sys.prefix, f'"{socket.gethostname()}"']
    texts = (*texts, *(path.read_text() for path in folder.iterdir() if path.suffix != ".gz"))
    found = {trace for text in texts for trace in own if re.search(rf"{re.escape(trace)}\b", text)}
    assert not found, f"{folder} names {found}"


def chaos(*arguments: str, exit_code: int = 0, state: Path | None = None) -> Any:
    """What a command of `chaos` prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **({} if state is None else {"CHAOS_STATE": str(state)})},
    )
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


# ---- ledgers ----

# It saves one small file at every fifth step, and never ends.
SAVING = """
import time
from pathlib import Path

import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    step += 1
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step % 5 == 0:
        Path("saved").mkdir(exist_ok=True)
        try:
            torch.save({"step": step, **model.state_dict()}, f"saved/{step}.pt")
        except (OSError, RuntimeError):
            print("not saved", step, flush=True)
"""
ENDLESS = f"--at step=5 --for 1h --steps 1000000 {TWO_NODES}"
SAVED = "--at step=12 --for 1h"
LEDGERS: Mapping[str, Subject] = {
    "pause-process": Subject(f"pause-process --on rank=1 {ENDLESS}", patch=PATIENT),
    "pause-node": Subject(f"pause-node --on node=1 {ENDLESS}", patch=PATIENT),
    "slow-rank": Subject(f"slow-rank --on rank=2 {ENDLESS}", patch=PATIENT),
    "slow-data": Subject(f"slow-data --on rank=0 {ENDLESS}", patch=PATIENT),
    "hang-gil": Subject(f"hang-gil --on rank=1 -p at_most=2h {ENDLESS}", patch=PATIENT),
    "drop-link": Subject(f"drop-link --on link=0-2 {ENDLESS}", patch=PATIENT),
    "slow-link": Subject(f"slow-link --on link=0-2 -p delay=5ms {ENDLESS}", patch=PATIENT),
    "isolate-node": Subject(f"isolate-node --on node=1 {ENDLESS}", patch=PATIENT),
    "truncate-checkpoint": Subject(f"truncate-checkpoint {SAVED}", "python train.py", SAVING),
    "flip-checkpoint-bit": Subject(f"flip-checkpoint-bit {SAVED}", "python train.py", SAVING),
    "hide-checkpoint": Subject(f"hide-checkpoint {SAVED}", "python train.py", SAVING),
    "remove-checkpoint-shard": Subject(
        f"remove-checkpoint-shard {SAVED}", f"{TORCHRUN} train.py 1000000 0.05", "dcp.py"
    ),
    "fill-disk": Subject(f"fill-disk {SAVED} -p size=1MiB", "python train.py", SAVING),
}
# Of the folder of a run: what no undo needs.
NOT_NEEDED = ("state", "stdout", "stderr", "site", "train.py", "latest", "logs", "prometheus.json", stored.EVENTS)
NOT_NEEDED += (stored.EXPERIMENT, stored.LEDGER)


def freeze_ledger(name: str, scratch: Path) -> None:
    """Kill `chaos` and its watchdog while the fault is there, store what they leave, and heal it.

    Healed is what was really left, with its processes alive; and, as the tests do, what was stored, without them.
    """
    root = (scratch / name).resolve()
    with LEDGERS[name].begin(root) as run:
        run.wait_for("verified")
        state = root / "state"
        (entry,) = state.glob("*.json")
        # One that still runs would start another watchdog.
        os.kill(run.process.pid, signal.SIGSTOP)
        os.kill(json.loads(entry.read_text())["watchdog"][0], signal.SIGKILL)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        stop_all(run.mark)
        target = stored.LEDGERS / name
        target.mkdir(parents=True)
        try:
            store_ledger(run.folder, entry, root, target)
            (real,) = chaos("heal", "--json", "--out", str(run.out), state=state)["runs"]
            assert real["clean"] and len(real["undone"]) == 1, real
            healed = heal_stored(name, scratch / f"{name}-restored")
            (target / stored.HEALED).write_text(json.dumps(healed, indent=1, ensure_ascii=False) + "\n")
            really = {path: digest for path, digest in stored.digests(root).items() if path in healed["files"]}
            assert really == healed["files"], (really, healed["files"])
            refuse_traces(target)
        except BaseException:
            shutil.rmtree(target)
            raise
    print(name, "files:", len(healed["files"]), "bytes:", sum(path.stat().st_size for path in target.iterdir()))
    print("    with its processes:   ", json.dumps(real["undone"])[:300])
    print("    without its processes:", json.dumps(healed["said"]["runs"][0]["undone"])[:300])


def stop_all(mark: str) -> None:
    """Stop all processes of the run: none changes a file while it is stored."""
    for process in processes_of_run(mark):
        process.signal(signal.SIGSTOP)


def store_ledger(folder: Path, entry: Path, root: Path, target: Path) -> None:
    """Write ledger, entry of the registry and files of the run in `folder` to `target`, with placeholders."""
    values = {stored.ROOT: str(root), **stored.places()}

    def with_placeholders(text: str) -> str:
        for placeholder, value in values.items():
            # A folder is a part of what is quoted.
            is_part = placeholder == stored.ROOT
            text = text.replace(value if is_part else json.dumps(value), placeholder if is_part else f'"{placeholder}"')
        return text

    (target / stored.LEDGER).write_text(with_placeholders((folder / stored.LEDGER).read_text()))
    (target / stored.ENTRY).write_text(with_placeholders(entry.read_text()))
    with (
        without_mounts(root) as view,
        gzip.GzipFile(target / stored.FILES, "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(view.rglob("*")):
            name = path.relative_to(view)
            if not {*name.parts} & {*NOT_NEEDED}:
                tar.add(path, str(name), recursive=False, filter=nobodys)


@contextmanager
def without_mounts(folder: Path) -> Iterator[Path]:
    """A view of `folder` that lacks what is mounted in it: a small disk in memory ends with the machine it is on."""
    with tempfile.TemporaryDirectory() as view:
        subprocess.run(["mount", "--bind", str(folder), view], check=True)
        try:
            yield Path(view)
        finally:
            subprocess.run(["umount", view], check=True)


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def heal_stored(name: str, root: Path) -> dict[str, Any]:
    """What `chaos heal --json` says of the stored ledger where its processes are gone, and the files afterwards."""
    stored.restore_ledger(stored.LEDGERS / name, root, root / "state")
    said = chaos("heal", "--json", "--out", str(root / "out"), state=root / "state")
    return stored.healed(said, root)


def main() -> None:
    """Freeze what is asked for, or all that is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("what", choices=["run", "ledger"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args()
    freeze, subjects, folder = {
        "run": (freeze_run, RUNS, stored.RUNS),
        "ledger": (freeze_ledger, LEDGERS, stored.LEDGERS),
    }[asked.what]
    # The programs that come with the packages, torchrun among them.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in asked.names or [name for name in subjects if not (folder / name).exists()]:
        freeze(name, asked.scratch.resolve())


if __name__ == "__main__":
    main()
