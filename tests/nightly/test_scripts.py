"""Further shapes that a training script may have."""

import sys

import pytest

from tests.external.jobs import ROOT, SCRIPTS, python, run_job
from tests.external.test_scripts import effect, held_after

pytestmark = pytest.mark.nightly


def test_two_optimizers_that_alternate(tmp_path):
    holds = [(0, 1, "forward"), (0, 2, "forward"), (0, 4, "optimizer"), (0, 5, "forward")]
    job = run_job(tmp_path, python("gan.py", "6"), holds=holds)
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5, 6])
    assert list(held_after(job).values()) == ["critic 1", "critic 2", "critic 4", "critic 5"]
    assert job.of("step_committed")[-1].fields["optimizers"] == 2


def test_a_closure_is_evaluated_within_the_step(tmp_path):
    holds = [(0, 1, "forward"), (0, 3, "forward"), (0, 3, "optimizer")]
    job = run_job(tmp_path, python("closure.py"), holds=holds)
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4])
    assert list(held_after(job).values()) == ["evaluate 1", "evaluate 3", "evaluated 3"]
    assert job.held[2].printed.count("evaluated 3") == 1


def test_a_script_that_leaves_out_what_is_not_finite_tells_how_often(tmp_path):
    script = (
        "import sys, torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(12):\n    loss = model(torch.ones(1, 2)).sum()\n    optimizer.zero_grad()\n"
        "    if sys.argv[1] == 'early' and not loss.isfinite():\n        continue\n    loss.backward()\n"
        "    if sys.argv[1] == 'stops' and step > 4 or not loss.isfinite():\n        continue\n    optimizer.step()\n"
    )
    told = {}
    for how, value in (("early", float("nan")), ("late", float("nan")), ("stops", 1.0)):
        job = run_job(
            tmp_path,
            [sys.executable, "-c", script, how],
            holds=[(0, 5, "forward")],
            on_hold=lambda held, value=value: [effect("Look", value=value)],
            site=[ROOT],
        )
        assert (job.exit_code, job.stderr) == (0, "")
        told[how] = job.steps[-1], job.of("rank_finished")[0].fields.get("spoilt_passes_left_out")
    # One step is taken with the sound value, and then none: that is no script that found something wrong.
    assert told == {"early": (4, 8), "late": (4, 8), "stops": (5, None)}


def test_a_script_with_steps_of_its_own_runs_alone(tmp_path):
    alone = {"CHAOS_AGENT": "", "CHAOS_RUN": ""}
    job = run_job(tmp_path, python("explicit.py"), site=[ROOT], environment=alone)
    assert (job.exit_code, job.stderr, job.hellos) == (0, "", [])


def test_a_compiled_step_of_the_optimizer_is_counted_when_it_is_over(tmp_path):
    # From its own code nothing can be told: the rest of the step is announced with the beginning of the next one.
    holds = [(0, 3, "backward"), (0, 3, "commit"), (0, 4, "forward")]
    job = run_job(tmp_path, python("compiled.py", "step"), holds=holds)
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5]), job.stderr
    assert list(held_after(job).values()) == ["forward 3", "begin 4", "begin 4"]
    assert len(job.of("rank_finished")) == 1


def test_forks_and_what_a_rank_starts_are_no_ranks(tmp_path):
    job = run_job(tmp_path, python("forks.py"))
    assert (job.exit_code, job.stderr, job.hellos) == (0, "", [(0, 0, 1)])
    assert job.steps == [1, 2, 3, 4]
    assert job.lines == ["apart"]
    assert len(job.of("rank_finished")) == 1


def test_ranks_that_no_launcher_named(tmp_path):
    job = run_job(tmp_path, python("spawned.py"), holds=[(1, 2, "forward")])
    assert (job.exit_code, sorted(job.hellos), job.steps) == (0, [(0, 0, 1), (1, 0, 1)], [1, 2, 3]), job.stderr
    assert [held.place for held in job.held] == [(1, 2, "forward")]


def test_the_last_steps_before_a_process_replaces_itself_or_ends_at_once_are_told(tmp_path):
    script = (
        "import os, pickle, sys, torch\nweight = torch.zeros(1, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=1)\nweight.grad = torch.ones(1)\n"
        "for _ in range(30):\n    optimizer.step()\n"
        "assert pickle.loads(pickle.dumps(torch.save)) is torch.save\n"
        "if 'again' not in sys.argv:\n    os.execv(sys.executable, [sys.executable, __file__, 'again'])\nos._exit(3)\n"
    )
    (tmp_path / "train.py").write_text(script)
    job = run_job(tmp_path, [sys.executable, "train.py"])
    assert (job.exit_code, job.stderr, job.hellos) == (3, "", [(0, 0, 1), (0, 0, 1)])
    assert job.steps == [*range(1, 31), *range(1, 31)]


def test_the_first_step_can_be_reached_too(tmp_path):
    def look(held):
        return [effect("Look", value=1e6)]

    job = run_job(tmp_path, python("plain.py", "2"), holds=[(0, 1, "data")], on_hold=look, site=[ROOT])
    assert next(iter(job.answers[0]["told"]["parameters"])) == "0.weight"
    assert job.of("step_committed")[0].fields["loss"] > 1e6


def test_a_sitecustomize_that_fails_fails_as_without_us(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    job = run_job(tmp_path, [sys.executable, "-c", "print('on')"], site=[theirs])
    assert (job.exit_code, job.lines) == (0, ["on"])
    assert "Error in sitecustomize" in job.stderr and "ValueError: theirs" in job.stderr


def test_a_script_with_a_package_of_our_name_keeps_it(tmp_path):
    theirs = tmp_path / "chaos"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("WHOSE = 'theirs'\n")
    script = (
        "import torch\nw = torch.zeros(1, requires_grad=True)\no = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(2):\n    w.sum().backward()\n    o.step()\nimport chaos\nprint(chaos.WHOSE)\n"
    )
    (tmp_path / "train.py").write_text(script)
    job = run_job(tmp_path, [sys.executable, "train.py"])
    assert (job.exit_code, job.lines, job.hellos) == (0, ["theirs"], [])
    assert job.stderr.count("chaos: this process is not observed: ImportError: the script has a package `chaos`") == 1


def test_a_module_run_by_name_is_followed_and_an_isolated_one_is_not(tmp_path):
    package = tmp_path / "trains"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text((SCRIPTS / "bare.py").read_text())
    followed = run_job(tmp_path, [sys.executable, "-m", "trains"])
    assert (followed.exit_code, followed.steps) == (0, [1, 2, 3, 4, 5])
    isolated = run_job(tmp_path, [sys.executable, "-I", str(SCRIPTS / "bare.py")])
    assert (isolated.exit_code, isolated.hellos) == (0, [])
    assert isolated.lines == followed.lines


def test_the_script_finds_its_modules_where_they_were(tmp_path):
    script = (
        "import sys\nbefore = list(sys.path)\nimport torch\n"
        "torch.optim.SGD([torch.zeros(1)], lr=1)\nassert sys.path == before\n"
    )
    job = run_job(tmp_path, [sys.executable, "-c", script])
    assert (job.exit_code, job.stderr) == (0, "")
