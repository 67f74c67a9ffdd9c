"""One example of every kind of fault: short, complete, and the one that its picture was taken of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent

# Two nodes of two ranks: done in ten seconds to half a minute.
_SMALL = "--nodes 2 --steps 60 --no-twin"
# A fault that lasts for seconds leaves room for steps before and after it.
_LONG = "--nodes 2 --steps 200 --no-twin"


@dataclass(frozen=True, slots=True)
class Example:
    """`arguments` of `chaos run`; a text `file` is that of `name`, else of the experiment file that these name."""

    arguments: str
    file: str | None = None
    name: str | None = None

    @property
    def command(self) -> str:
        """The line that a user types."""
        return f"chaos run {self.arguments}"


def _of_loader(fault: str, start: str = "python loader.py") -> Example:
    """A script whose DataLoader has workers of its own."""
    text = """\
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Samples(Dataset):
            def __len__(self):
                return 4000

            def __getitem__(self, index):
                return torch.randn(200, 200, generator=torch.Generator().manual_seed(index)).matrix_exp().mean(1)


        model = torch.nn.Linear(200, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in DataLoader(Samples(), batch_size=16, num_workers=2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        """
    return Example(f"{fault} -- {start}", dedent(text), "loader.py")


def _of_upload(fault: str) -> Example:
    """A script that reports to a server by name, and trains on without it."""
    text = """\
        import socket
        import time

        import torch

        model = torch.nn.Linear(200, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(150):
            optimizer.zero_grad()
            model(torch.randn(16, 200)).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)
            if step % 5 == 0:
                try:
                    socket.getaddrinfo("localhost", 80)
                except OSError as error:
                    print(f"step {step}: not reported: {error}")
        """
    return Example(f"{fault} -- python upload.py", dedent(text), "upload.py")


def _of_saver(fault: str) -> Example:
    """A script that saves when it gets SIGTERM, and continues from there."""
    text = """\
        import signal
        import time
        from pathlib import Path

        import torch

        asked = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
        model = torch.nn.Linear(16, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        begin = 0
        if Path("saved.pt").exists():
            saved = torch.load("saved.pt")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            begin = saved["step"]
        for step in range(begin + 1, 61):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)
            if asked or step % 20 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "saved.pt")
            if asked:
                break
        """
    return Example(f"{fault} --reset 'rm -f saved.pt' -- python saver.py", dedent(text), "saver.py")


def _damaged(fault: str) -> Example:
    """A damaged checkpoint is detected by a job that needs it: every rank of a stage dies two steps later."""
    text = f"""\
        name: damaged-checkpoint
        job: {{nodes: 2, steps: 60, checkpoint: {{every_steps: 8}}}}
        twin: false
        faults:
          - {{{fault}}}
          - {{kind: kill-process, on: stage=0, at: {{step: 22}}, repair: 1step}}
        """
    return Example("damaged-checkpoint.yaml", dedent(text))


def _flipped_snapshot() -> Example:
    """A damaged snapshot is detected by a job that needs it: every rank dies in the same moment."""
    text = """\
        name: damaged-snapshot
        job: {nodes: 2, steps: 60, snapshots: {every: 1, protection: xor}}
        twin: false
        faults:
          - {kind: flip-snapshot-bit, on: node=1, at: {step: 20, phase: snapshot}}
          - {kind: kill-job, at: {step: 20, phase: snapshot}}
        """
    return Example("damaged-snapshot.yaml", dedent(text))


EXAMPLES: Mapping[str, Example] = {
    "abort": Example(f"abort --on rank=1 --at step=20 --repair 20steps {_SMALL}"),
    "bit-flip": Example(f"bit-flip --on rank=2 --at step=20 -p where=parameters -p bit=exponent {_SMALL}"),
    "device-assert": Example(f"device-assert --on rank=1 --at step=20 --repair 20steps {_SMALL}"),
    "drain-node": Example(f"drain-node --on node=1 --at step=20 --repair 20steps --spares 1 {_SMALL}"),
    "drop-coordinator-link": Example(f"drop-coordinator-link --on rank=1 --at step=40 --for 5s {_LONG}"),
    "drop-link": Example(f"drop-link --on link=0-3 --at step=40 --for 5s {_LONG}"),
    "ecc-telemetry": Example(f"ecc-telemetry --on rank=3 --at step=20 -p xid=94 {_SMALL}"),
    "exit": Example(f"exit --on rank=1 --at step=20 --repair 20steps -p code=9 {_SMALL}"),
    "fill-disk": Example(f"fill-disk --at step=12 --for 20steps --checkpoint-every 8 {_SMALL}"),
    "fill-shm": _of_loader(
        "fill-shm --at step=60",
        "unshare --map-root-user --mount sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm; exec python loader.py'",
    ),
    "flap-link": Example(f"flap-link --on link=0-3 --at step=40 --for 8s -p down=1s -p up=2s {_LONG}"),
    "flip-checkpoint-bit": _damaged("kind: flip-checkpoint-bit, at: {step: 20}"),
    "flip-snapshot-bit": _flipped_snapshot(),
    "gpu-hang": Example(f"gpu-hang --on rank=1 --at step=20 -p seconds=20 {_SMALL}"),
    "gpu-oom": Example(f"gpu-oom --on rank=1 --at step=20 --for 2steps {_SMALL}"),
    "hang-gil": Example(f"hang-gil --on rank=1 --at step=40 --for 5s {_LONG}"),
    "hide-checkpoint": _damaged("kind: hide-checkpoint, at: {step: 20}"),
    "isolate-node": Example(f"isolate-node --on node=1 --at step=40 --for 5s {_LONG}"),
    "kill-data-worker": _of_loader("kill-data-worker --at step=60"),
    "kill-job": Example(f"kill-job --at step=20,phase=backward --snapshot-every 1 {_SMALL}"),
    "kill-node": Example(f"kill-node --on node=1 --at step=20 --repair 20steps {_SMALL}"),
    "kill-process": Example(f"kill-process --on rank=2 --at step=20,phase=backward --repair 20steps {_SMALL}"),
    "kill-smp": Example(f"kill-smp --on node=1 --at step=20 --snapshot-every 1 {_SMALL}"),
    "leak-memory": Example(f"leak-memory --on rank=1 --at step=20 --repair 20steps -p limit=256MiB {_SMALL}"),
    "partition": Example(f'partition --at step=40 --for 5s -p "groups=0,1|2,3" {_LONG}'),
    "pause-node": Example(f"pause-node --on node=1 --at step=40 --for 5s {_LONG}"),
    "pause-process": Example(f"pause-process --on rank=3 --at step=20 --for 1s {_SMALL}"),
    "preempt": _of_saver("preempt --at step=25 -p grace=10s"),
    "raise": Example(
        f"raise --on rank=1 --at step=20,phase=backward --repair 20steps -p exception=OverflowError {_SMALL}"
    ),
    "remove-checkpoint-shard": _damaged("kind: remove-checkpoint-shard, at: {step: 20}, unit: layer.3"),
    "reset-link": Example(f"reset-link --on link=0-3 --at step=40 --for 5s {_LONG}"),
    "scale": Example(
        f"scale --on rank=1 --at step=20 -p where=activations -p tensor=layer.3.ffn -p factor=50 {_SMALL}"
    ),
    "segfault": Example(f"segfault --on rank=1 --at step=20 --repair 20steps {_SMALL}"),
    "set-inf": Example(f"set-inf --on rank=3 --at step=20 -p where=activations {_SMALL}"),
    "set-nan": Example(f"set-nan --on rank=3 --at step=20 -p where=gradients -p share=0.01 {_SMALL}"),
    "slow-checkpoint": Example(
        f"slow-checkpoint --on node=1 --at step=16 --for 32steps -p delay=400ms --checkpoint-every 8 {_SMALL}"
    ),
    "slow-data": Example(f"slow-data --on rank=1 --at step=20,phase=data --for 20steps -p delay=150ms {_SMALL}"),
    "slow-data-worker": _of_loader("slow-data-worker --at step=60 --for 100steps -p factor=3"),
    "slow-link": Example(f"slow-link --on link=0-3 --at step=40 --for 5s -p delay=20ms -p loss=0.01 {_LONG}"),
    "slow-rank": Example(f"slow-rank --on rank=2 --at step=20 --for 20steps -p factor=3 {_SMALL}"),
    "stale-gradient": Example(f"stale-gradient --on rank=0 --at step=20 {_SMALL}"),
    "truncate-checkpoint": _damaged("kind: truncate-checkpoint, at: {step: 20}, keep_ratio: 0.25, unit: head"),
    "unresolved-name": _of_upload("unresolved-name --at step=60 --for 5s -p name=localhost -p delay=500ms"),
}
