"""What surrounds a rank of somebody else's job: its /dev/shm is full, and names do not resolve in it."""

import json
import subprocess
import sys

import pytest

from tests.integration.runs import run_chaos

pytestmark = pytest.mark.external

SCRIPT = """\
import socket
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((8,), float(index % 7))


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
batches = iter(DataLoader(Samples(), batch_size=4, num_workers=2))
for step in range(1, int(sys.argv[1]) + 1):
    model(next(batches)).square().mean().backward()
    optimizer.step()
    try:
        socket.getaddrinfo("localhost", 80)
    except OSError as error:
        print("not resolved in step", step, error.errno, flush=True)
    time.sleep(0.02)
"""
SHM = "mount -t tmpfs -o size=32m tmpfs /dev/shm"
UNSHARE = ("unshare", "--map-root-user", "--mount", "sh", "-c")
FAULTS = """\
name: shm-and-names
faults:
  - {kind: unresolved-name, on: rank=0, at: {step: 8}, for: 3steps, name: localhost, error: EAI_NONAME}
  - {kind: fill-shm, on: rank=0, at: {step: 20}}
"""


def script(folder):
    (folder / "script.py").write_text(SCRIPT)
    return str(folder / "script.py")


@pytest.mark.skipif(
    subprocess.run([*UNSHARE, SHM], capture_output=True, check=False).returncode != 0,
    reason="takes the right to make a mount namespace",
)
def test_lookups_fail_until_they_are_undone_and_a_loader_dies_of_its_full_memory(tmp_path):
    command = [*UNSHARE, f"{SHM}; exec {sys.executable} {script(tmp_path)} 200"]
    experiment = f"{FAULTS}job: {json.dumps({'runtime': 'command', 'command': command})}\n"
    (tmp_path / "faults.yaml").write_text(experiment)
    run = run_chaos(tmp_path, str(tmp_path / "faults.yaml"))
    names, shm = run.summary["incidents"]
    assert names["verified"] and shm["verified"], (names["unverified_reason"], shm["unverified_reason"])
    (lookup,) = names["evidence"]["ranks"]
    assert (lookup["rank"], lookup["name"], lookup["error"]) == (0, "localhost", "EAI_NONAME")
    printed = (run.folder / "logs/job.log").read_text().splitlines()
    failed = [line.split()[-2:] for line in printed if line.startswith("not resolved")]
    assert failed and {error for _, error in failed} == {"-2"} and min(int(step) for step, _ in failed) >= 8
    (place,) = shm["evidence"]["places"]
    assert (place["write"], place["free_bytes"], place["is_shared"]) == ("ENOSPC", 0, False)
    assert run.exit_code == 1 and "No space left on device" in run.summary["reasons"][0]


@pytest.mark.nightly
def test_a_script_that_looks_no_such_name_up_proves_nothing(tmp_path):
    command = (sys.executable, script(tmp_path), "40")
    run = run_chaos(tmp_path, "unresolved-name", "--at", "step=8", "-p", "name=*.example", command=command)
    (incident,) = run.summary["incidents"]
    assert run.exit_code == 5 and not incident["verified"] and run.summary["steps_committed"] == 40


@pytest.mark.nightly
def test_the_machines_shared_memory_is_not_filled_without_a_size(tmp_path):
    command = (sys.executable, script(tmp_path), "40")
    run = run_chaos(tmp_path, "fill-shm", "--at", "step=8", command=command)
    (incident,) = run.summary["incidents"]
    assert run.exit_code == 5 and not incident["verified"] and "size" in run.summary["reasons"][0]


@pytest.mark.nightly
def test_a_late_name_resolves_after_its_delay(tmp_path):
    fault = ("unresolved-name", "--at", "step=8", "--for", "1s", "-p", "delay=200ms", "-p", "name=localhost")
    run = run_chaos(tmp_path, *fault, command=(sys.executable, script(tmp_path), "60"))
    (lookup,) = run.summary["incidents"][0]["evidence"]["ranks"]
    assert lookup["waited_seconds"] >= 0.2 and lookup["error"] is None and run.exit_code == 0
