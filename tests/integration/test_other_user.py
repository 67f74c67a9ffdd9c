"""A command under root whose ranks are processes of another user: they are observed, or it is said who was not."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.runs import run_chaos

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can change its user"),
]

NOBODY = 65534
DROP = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# After the first optimizer: what is imported later need not be readable for this user.
TRAINING = f"""
import os, sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
os.setgid({NOBODY})
os.setuid({NOBODY})
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def test_a_rank_that_drops_to_another_user_is_observed_and_held(tmp_path):
    """The run's folder is one that only root may enter, so that the socket is elsewhere."""
    tmp_path.chmod(0o700)
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=(sys.executable, "-c", TRAINING, "30"))
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["step"] == 8
    assert run.exit_code == 1 and run.summary["steps_committed"] == 7


def test_such_a_rank_hangs_at_a_gate_that_is_given_to_its_user():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        command = (sys.executable, "-c", TRAINING, "12")
        run = run_chaos(folder, "hang-gil", "--at", "step=8", "--for", "500ms", command=command)
    assert run.summary["incidents"][0]["verified"] and run.exit_code == 0


def test_a_user_that_did_not_report_is_named(tmp_path):
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=(*DROP, "sleep", "3"))
    (unseen,) = run.of("no_step_seen")
    assert (run.exit_code, unseen.fields["why"]) == (5, "other_user")
    assert str(NOBODY) in unseen.fields["user"] and unseen.fields["user"] in run.summary["reasons"][0]


def test_a_rank_that_no_process_of_the_run_started_is_refused_and_named(tmp_path):
    """It bears the run's mark, which everybody can write, and has left the command's tree of processes."""
    wait = "import os, time\nwhile os.getppid() == int(os.environ['STARTER']): time.sleep(0.01)\n"
    shell = 'STARTER=$$; export STARTER; setsid "$@" & echo $! >pid'
    daemon = (sys.executable, "-c", wait + TRAINING, "20")
    # It has ended itself when the command does.
    both = f"sh -c '{shell}' sh \"$@\"; while kill -0 $(cat pid); do sleep 0.1; done"
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=("sh", "-c", both, "sh", *daemon))
    assert run.exit_code == 5 and run.of("no_step_seen")[0].fields["why"] == "other_user"
    assert any(f"uid {NOBODY}" in event.fields["message"] for event in run.of("warning"))
