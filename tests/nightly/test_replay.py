"""Replay of what fired at a time, and a refusal."""

import pytest

from tests.integration.runs import SMALL, assert_sound, paced, read_run, run_chaos
from tests.integration.test_replay import chaos

pytestmark = pytest.mark.nightly


def test_a_replay_affects_the_same_ranks_at_the_same_steps(tmp_path):
    # Training has begun by then on a slow machine, and is not over on a fast one.
    when = ("--at", "time=4s", "--seed", "5", "--steps", "60")
    first = run_chaos(tmp_path, "kill-process", *when, *SMALL, patch=paced(0.1))
    affected = first.one("injected")
    code, _, stderr = chaos(tmp_path / "again", tmp_path / "out", "replay", "latest", "--json")
    assert code == 0, stderr
    (folder,) = (tmp_path / "out").glob("kill-process-replay/2*")
    again = read_run(folder, code, stderr)
    assert_sound(again, 60)
    assert again.one("injected").step == affected.step
    assert again.one("injected").fields["ranks"] == affected.fields["ranks"]
    code, _, stderr = chaos(tmp_path / "none", tmp_path / "out", "replay", "latest", "--only", "3")
    assert (code, "no incident 3" in stderr) == (4, True)


def test_a_run_that_passed_is_not_shrunk(tmp_path):
    run_chaos(tmp_path, "kill-process", "--on", "role=coordinator", "--at", "step=5", "--steps", "12", *SMALL)
    code, _, stderr = chaos(tmp_path / "shrink", tmp_path / "out", "shrink")
    assert (code, "only a run that failed can be shrunk" in stderr) == (4, True)
