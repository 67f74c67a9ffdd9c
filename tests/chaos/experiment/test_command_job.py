"""The job that is a command: how it is written, what is derived of it, and what it cannot have."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment.command_job import CommandConfig, CommandJob, check_command
from chaos.experiment.experiment import experiment_hash, to_yaml
from chaos.experiment.reading import from_mapping, from_options, load
from chaos.experiment.schema import json_schema
from chaos.language.launcher import launcher_of_command, ranks_of_command
from chaos.plan.schedule import make_plan
from mecefo_chaos.cli.main import run_cli
from tests.chaos.fake_faults import REGISTRY, STRATEGIES

pytestmark = pytest.mark.unit

KNOWN = {"registry": REGISTRY, "strategies": STRATEGIES}
TORCHRUN = ("torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1")


def options(*command, subject="kill-process", **given):
    said = {"at": "step=30", "command": command or TORCHRUN, **given}
    return from_options(subject, {key: value for key, value in said.items() if value is not None}, **KNOWN)


def violations(**given):
    with pytest.raises(UsageError) as refused:
        options(**given)
    return str(refused.value)


def incidents_of(experiment):
    return make_plan(experiment, experiment.cluster(), registry=REGISTRY).incidents


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (TORCHRUN, (None, 2)),
        (("/venv/bin/torchrun", "--nnodes=2", "--nproc_per_node=4", "t.py", "--nproc-per-node", "9"), (2, 4)),
        (("torchrun", "--nproc-per-node", "gpu", "--nnodes", "1:4", "t.py"), (None, None)),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node=3", "-m", "pkg", "--nnodes", "7"), (None, 3)),
        (("accelerate", "launch", "--num_machines", "2", "--num_processes", "8", "t.py"), (2, 4)),
        (("python", "train.py", "--nproc-per-node", "2"), (None, None)),
        (("torchrun", "--nproc-per-node"), (None, None)),
        (("torchrun", "--nproc-per-node", "0", "t.py"), (None, None)),
        (("torchrun", "--nproc-per-node", "cpu", "t.py"), (None, os.cpu_count())),
        (("deepspeed", "--num_gpus=2", "--num_nodes", "3", "t.py", "--deepspeed"), (3, 2)),
        (("deepspeed", "--num_gpus", "4", "t.py"), (None, 4)),
        (("mpirun", "-np", "4", "-x", "PATH", "python", "t.py", "-n", "9"), (None, 4)),
        (("mpirun", "-n", "8", "--npernode", "4", "./t"), (2, 4)),
        (("srun", "-N2", "-n", "8", "python", "t.py"), (2, 4)),
        (("srun", "--nodes=2", "--ntasks-per-node=1", "torchrun", "--nnodes=2", "--nproc-per-node=8", "t.py"), (2, 8)),
        (("sh", "-c", "cd x && torchrun --nproc-per-node 2 t.py"), (None, 2)),
        (("accelerate", "config", "--num_processes", "8"), (None, None)),
    ],
)
def test_the_launcher_says_how_many_ranks_there_are(command, expected):
    assert ranks_of_command(command) == expected


def test_a_launcher_within_a_shell_script_is_understood(tmp_path):
    script = tmp_path / "start.sh"
    script.write_text(
        "#!/bin/bash\n# torchrun --nproc-per-node 9\nexport A=1\ntorchrun \\\n  --nproc-per-node 3 t.py 'it\n"
    )
    assert ranks_of_command(["bash", "start.sh"], tmp_path) == (None, None)
    script.write_text(script.read_text().replace("'it", "it"))
    for command in (["bash", "start.sh"], ["./start.sh"], ["sh", "-e", "start.sh"]):
        assert ranks_of_command(command, tmp_path) == (None, 3)
    assert ranks_of_command(["bash", "none.sh"], tmp_path) == (None, None)
    os.mkfifo(tmp_path / "pipe.sh")
    assert ranks_of_command(["bash", "pipe.sh"], tmp_path) == (None, None)


def test_gpus_are_counted_as_cuda_is_to_see_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    for word in ("gpu", "auto"):
        assert ranks_of_command(["torchrun", f"--nproc-per-node={word}", "t.py"]) == (None, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ranks_of_command(["torchrun", "--nproc-per-node=auto", "t.py"]) == (None, os.cpu_count())
    assert ranks_of_command(["torchrun", "--nproc-per-node=gpu", "t.py"]) == (None, None)


def test_replicas_of_several_ranks_are_targets():
    job = options(on="replica=1", data_parallel=2, command=("torchrun", "--nproc-per-node=4", "t.py"))
    assert incidents_of(job)[0].target.ranks == (2, 3)
    # Replica groups under launchers of their own: a node each.
    groups = options(on="replica=1", data_parallel=2, command=("bash", "start.sh"))
    assert (groups.job.nodes, incidents_of(groups)[0].target.ranks) == (2, (1,))
    assert "are not 3 replicas" in violations(data_parallel=3, nodes=2)


def test_a_twin_is_run_where_it_is_asked_for():
    assert (options().twin, options(twin=True).twin) == (False, True)
    assert options(reset="rm -rf out").job.reset == "rm -rf out"


def test_no_fault_is_a_run_of_its_own():
    assert options(subject="none", at=None).faults == []
    assert "none is a run without a fault" in violations(subject="none", on="rank=1")


def test_what_finds_steps_in_a_log_is_a_regular_expression():
    assert options(step_from="step ([0-9]+)").job.to_config(0, 1.0).step_from == "step ([0-9]+)"
    assert "is no regular expression" in violations(step_from="step (")


def test_where_a_script_saves_is_a_folder(tmp_path):
    said = options(checkpoint_folder="out").job.to_config(0, 1.0).checkpoint
    assert said.folder == str(Path.cwd() / "out")
    text = {"name": "n", "job": {"runtime": "command", "command": ["sh"], "folder": str(tmp_path), "checkpoint": "out"}}
    assert from_mapping(text, **KNOWN).job.to_config(0, 1.0).checkpoint.folder == str(tmp_path / "out")


def test_a_command_line_makes_a_command_job():
    experiment = options(seed=7, steps=50)
    job = experiment.job
    assert isinstance(job, CommandJob)
    assert (job.command, job.nodes, job.gpus_per_node, job.steps) == (list(TORCHRUN), 1, 2, 50)
    assert (experiment.name, experiment.twin) == ("kill-process", False)
    assert options(nodes=2, gpus_per_node=3).cluster().num_ranks == 6


def test_a_file_says_the_same_and_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: kill-process\nfaults: [{kind: kill-process, at: step=30}]\n"
        "job: {runtime: command, command: [torchrun, --nproc-per-node, '2', train.py, --lr, '0.1']}\n"
    )
    experiment = load(path, **KNOWN)
    assert experiment_hash(experiment) == experiment_hash(options())
    odd = options("sh", "-c", "for i in 1 2; do\n  python 'a b.py' é\ndone")
    path.write_text(to_yaml(odd))
    assert load(path, **KNOWN) == odd


def test_the_command_replaces_the_one_of_the_file(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(to_yaml(options(environment={"A": "b"})))
    changed = from_options(str(path), {"command": ("python", "other.py")}, **KNOWN)
    assert changed.job.command == ["python", "other.py"] and changed.job.environment == {"A": "b"}


def test_what_only_our_jobs_have_is_refused_by_name():
    said = violations(strategy="ndb", model="llama-tiny", dilation="off", pipeline=2)
    for option in ("--strategy", "--model", "--dilation", "--pipeline"):
        assert f"{option}: the job is a command" in said
    assert "--checkpoint-every: the job is a command" in violations(checkpoint_every=5)
    assert "a command in containers is started once" in violations(twin=True, backend="docker")
    assert "--repair: the job is a command" in violations(repair="3steps")
    assert "(did you mean 'steps'?)" in str(refusal_of({"stepps": 3}))


def refusal_of(job):
    with pytest.raises(UsageError) as refused:
        from_mapping({"name": "n", "job": {"runtime": "command", "command": ["true"], **job}}, **KNOWN)
    return refused.value


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"command": []}, "job.command"),
        ({"command": 3}, "job.command: must be text, as in a shell, or a list of words, not 3"),
        ({"command": "python 'train.py"}, 'job.command: "python \'train.py" cannot be split into words'),
        ({"command": " "}, "job.command: names no program"),
        ({"command": ["a\0b"]}, "job.command[0]: 'a\\x00b' cannot be part of a command"),
        ({"stall_timeout": "10steps"}, "job.stall_timeout"),
        ({"stall_timeout": "0s"}, "job.stall_timeout"),
        ({"nodes": 2000}, "job.nodes"),
        ({"nodes": 40, "gpus_per_node": 41}, "job.gpus_per_node: 40 nodes x 41 ranks are 1640 ranks"),
        ({"gpus_per_node": 600, "command": ["torchrun", "--nnodes", "9", "t.py"]}, "job.gpus_per_node: 9 nodes x 600"),
        ({"command": ["torchrun", "--nnodes=900", "--nproc-per-node=8", "t.py"]}, "job.command: 900 nodes x 8 ranks"),
        ({"environment": {"A": 3}}, "job.environment.A"),
    ],
)
def test_a_mistake_is_named_where_it_is(job, message):
    assert message in str(refusal_of(job))


def test_a_command_that_does_not_tell_its_ranks_is_said_how_they_are_told():
    shell = ("sh", "-c", "exec train")
    how = "rank=1 does not exist: the job has only rank 0; the command does not tell: --nodes and --gpus-per-node do"
    assert how in violations(command=shell, on="rank=1")
    assert options(*shell, on="rank=1", gpus_per_node=2).cluster().num_ranks == 2
    assert "if the command starts more than that: --nodes" in violations(on="rank=2")


def test_phases_and_roles_that_nobody_can_see_are_refused():
    assert "data, forward, backward, optimizer" in violations(at="step=3,phase=reduce")
    assert "has no coordinator" in violations(on="role=coordinator")
    assert "only stage 0" in violations(on="stage=1")
    assert options(at="step=3,phase=optimizer", on="role=launcher").faults
    assert "step=60, but the job has 50 steps" in violations(at="step=60", steps=50)


def test_nothing_is_repaired_and_all_ranks_may_be_lost():
    faults = [{"kind": "kill-process", "on": "rank=0", "at": f"step={step}"} for step in (5, 9)]
    experiment = from_mapping(
        {"name": "n", "job": {"runtime": "command", "command": ["python", "train.py"]}, "faults": faults}, **KNOWN
    )
    incidents = incidents_of(experiment)
    # Once more on the rank that the launcher has started again meanwhile.
    assert [(incident.target.ranks, incident.repair) for incident in incidents] == [((0,), None), ((0,), None)]
    assert incidents_of(options(seed=3)) == incidents_of(options(seed=3))


def test_a_program_or_a_folder_that_is_not_there_is_refused(tmp_path):
    check_command(CommandConfig(("sh", "-c", "true")))
    with pytest.raises(UsageError, match="no program 'no-such-program'"):
        check_command(CommandConfig(("no-such-program",)))
    with pytest.raises(UsageError, match="no folder"):
        check_command(CommandConfig(("sh",), folder=str(tmp_path / "none")))
    (tmp_path / "start.sh").write_text("#!/bin/sh\n")
    (tmp_path / "start.sh").chmod(0o755)
    check_command(CommandConfig(("./start.sh",), folder=str(tmp_path)))


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (TORCHRUN, "torchrun"),
        (("python3", "-m", "torch.distributed.run", "t.py"), "torchrun"),
        (("/venv/bin/accelerate", "launch", "t.py"), "accelerate"),
        (("deepspeed", "t.py"), "deepspeed"),
        (("srun", "torchrun", "t.py"), "torchrun"),
        (("sh", "-c", "cd x && torchrun t.py"), "torchrun"),
        (("/venv/bin/python3.12", "t.py", "--lr", "0.1"), "python"),
        # It may start anything, and again and again.
        (("sh", "-c", "while ! python t.py; do :; done"), None),
        (("./train",), None),
    ],
)
def test_the_launcher_is_told_by_the_command(command, launcher):
    assert launcher_of_command(command) == launcher


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """(the folder on PATH, the folder of the Python that runs chaos), both with nothing in them but that Python."""
    on_path, venv = tmp_path / "on-path", tmp_path / "my venv" / "bin"
    on_path.mkdir()
    venv.mkdir(parents=True)
    make_program(venv / "python3")
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setattr(sys, "executable", str(venv / "python3"))
    return on_path, venv


def make_program(path):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def refused_program(program, **settings):
    with pytest.raises(UsageError) as refused:
        check_command(CommandConfig((program,), **settings))
    return refused.value


class TestAProgramThatIsNotOnPath:
    def test_the_one_beside_this_python_is_named_and_works_as_written(self, programs):
        _, venv = programs
        make_program(venv / "torchrun")
        error = refused_program("torchrun")
        assert error.suggestion is None
        written = shlex.split(error.message.rpartition("write ")[2])
        assert written == [str(venv / "torchrun")]
        check_command(CommandConfig(tuple(written)))

    def test_an_environment_that_can_be_activated_is_named(self, programs, monkeypatch):
        _, venv = programs
        make_program(venv / "torchrun")
        assert "activate" not in refused_program("torchrun").message
        (venv / "activate").write_text("")
        assert f"(`. {shlex.quote(str(venv / 'activate'))}`)" in refused_program("torchrun").message
        # It would not change the PATH that the job has.
        assert "activate" not in refused_program("torchrun", environment={"PATH": "/nowhere"}).message
        monkeypatch.setenv("PATH", str(venv))
        check_command(CommandConfig(("torchrun",)))

    def test_a_misspelt_launcher_gets_a_word_that_is_accepted(self, programs):
        on_path, venv = programs
        assert refused_program("torchrum").suggestion is None
        make_program(venv / "torchrun")
        suggestion = refused_program("torchrum").suggestion
        check_command(CommandConfig(tuple(shlex.split(suggestion))))
        make_program(on_path / "torchrun")
        assert refused_program("torchrum").suggestion == "torchrun"

    @given(word=st.sampled_from(["torchrun", "python", "python3", "accelerate", "deepspeed", "srun", "torchru", "x"]))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_the_word_that_was_written_is_never_suggested(self, programs, word):
        make_program(programs[0] / "python3")
        path = {"PATH": str(programs[0])}
        if word != "python3":
            assert refused_program(word, environment=path).suggestion != word

    def test_a_script_is_given_a_program_that_is_there(self, programs, tmp_path):
        _, venv = programs
        (tmp_path / "train.py").write_text("")
        assert "torchrun train.py, or python train.py" in refused_program("train.py", folder=str(tmp_path)).message
        make_program(venv / "torchrun")
        for script in ("train.py", "./train.py"):
            written = f"{shlex.quote(str(venv / 'torchrun'))} {script}"
            assert written in refused_program(script, folder=str(tmp_path)).message


def test_which_programs_a_container_has_is_not_known_here(tmp_path):
    check_command(CommandConfig(("no-such-program",)), is_in_containers=True)
    with pytest.raises(UsageError, match="no folder"):
        check_command(CommandConfig(("sh",), folder=str(tmp_path / "none")), is_in_containers=True)
    with pytest.raises(UsageError, match="its own root"):
        check_command(CommandConfig(("sh",), folder="/"), is_in_containers=True)


def test_in_containers_a_command_is_started_on_every_node():
    standalone = ("torchrun", "--standalone", "train.py")
    assert options(*standalone, backend="docker").backend == "docker"
    assert options(*standalone, nodes=2).job.nodes == 2
    with pytest.raises(UsageError, match="--standalone is a job of one node"):
        options(*standalone, nodes=2, backend="docker")


def test_the_schema_knows_both_jobs():
    schema = json.dumps(json_schema(registry=REGISTRY, strategies=STRATEGIES))
    assert '"CommandJob"' in schema and '"startup_timeout"' in schema and '"strategy"' in schema


def test_the_command_line_takes_everything_behind_the_dashes(capsys):
    assert run_cli(["plan", "kill-process", "--at", "step=3", "--json", "--", "sh", "--json", "--", "-x"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"]["job"]["command"] == ["sh", "--json", "--", "-x"]
    assert run_cli(["plan", "kill-process", "--at", "step=3", "--"]) == 4
    assert "no command after --" in capsys.readouterr().err
    assert run_cli(["run", "kill-process", "--at", "step=3", "--dry-run", "--", "sh"]) == 0
    assert capsys.readouterr().out.startswith("sh: 1 node x 1 ranks, steps not known beforehand\nincident 0: ")
