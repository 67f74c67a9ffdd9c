"""What every backend keeps that is installed: ours, and one of somebody else's package, written from the page alone."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import EnvironmentFailure, UsageError
from chaos.experiment.backends import EXPERIMENT_KEYS, BackendDescription, backends, broken_backends, settings_model
from chaos.experiment.experiment import Experiment, experiment_hash
from chaos.experiment.reading import from_mapping, from_options, load
from chaos.experiment.schema import json_schema
from chaos.plugins import DEFAULT_BACKEND
from harness.backends.base import BackendSetup, kind_of
from harness.backends.examine import examine
from harness.control.control_server import ControlServer
from harness.node.node import Capabilities
from harness.run.preparation import prepare_anywhere
from mecefo_runtime.system.emitter import Emitter
from tests.plugins import install, install_backend_of_page, known_backends

pytestmark = pytest.mark.unit

# Those that are installed beside ours, too.
NAMES = tuple(sorted({*backends(), "pinned"}, key=lambda name: (name != DEFAULT_BACKEND, name)))
JOBS = {"built-in": {"steps": 5}, "command": {"runtime": "command", "command": ["true"]}}
# What a backend needs to be told before it can be made.
SETTINGS = {"ssh": {"ssh": {"hosts": ["host-0"]}}}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """With the backend of docs/how-to/extending/backend.md."""
    install_backend_of_page(tmp_path / "site")
    with known_backends(tmp_path / "site", monkeypatch):
        yield tmp_path / "site"


def test_all_are_found_the_default_one_first():
    assert tuple(backends()) == NAMES
    assert not broken_backends()


@pytest.mark.parametrize("name", NAMES)
def test_its_description_can_be_told(name):
    kind = kind_of(backends()[name])
    assert kind.name == name and re.fullmatch("[a-z][a-z0-9-]*", name)
    assert re.match("an? ", kind.node) and kind.nodes.endswith("s")
    assert kind.__doc__
    fields = kind.Settings.model_fields
    assert bool(fields) == bool(kind.settings_key)
    assert all(field.description for field in fields.values())
    assert kind.settings_key not in EXPERIMENT_KEYS


def test_the_keys_of_an_experiment_are_no_backends():
    assert Experiment.model_fields.keys() - {"backend_settings"} == EXPERIMENT_KEYS


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_on_it_is_written_and_read_again(name, job):
    experiment = from_mapping({"name": "n", "backend": name, "job": job})
    assert isinstance(experiment.node_settings, backends()[name].Settings)
    again = from_mapping(experiment.model_dump(mode="json"))
    assert (again, experiment_hash(again)) == (experiment, experiment_hash(experiment))
    assert prepare_anywhere(experiment).job.cluster().num_ranks >= 1


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_made_for_the_jobs_that_it_does_not_refuse_and_starts_nothing_then(name, job, tmp_path, monkeypatch):
    pretend_allocation(tmp_path, monkeypatch)
    experiment = from_mapping({"name": "n", "backend": name, "job": job, **SETTINGS.get(name, {})})
    if kind_of(backends()[name]).spans_hosts and "runtime" not in job:
        with pytest.raises(EnvironmentFailure, match="the built-in job runs on one machine"):
            kind_of(experiment.nodes_on).require(experiment, io.StringIO())
        return
    prepared, control = prepare_anywhere(experiment), ControlServer(lambda event: None)
    emitter = Emitter(lambda event: None, "conductor")
    setup = BackendSetup(
        experiment, prepared.job, [], tmp_path, tmp_path / "logs", control, "token", emitter, "unix:///none"
    )
    backend = kind_of(experiment.nodes_on).backend(setup)
    assert list(backend.jobs) == []
    assert {type(value) for value in (backend.may_outlive, backend.can_run_beside)} == {bool}


def pretend_allocation(folder, monkeypatch):
    """As in a Slurm allocation of one host."""
    scontrol = folder / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\necho host-0\n")
    scontrol.chmod(0o700)
    monkeypatch.setenv("PATH", f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "host-0")


@pytest.mark.parametrize("name", NAMES)
def test_its_machine_answers_in_plain_values(name):
    machine = kind_of(backends()[name]).machine()
    capabilities = machine.capabilities()
    assert Capabilities.from_json(json.loads(json.dumps(capabilities.to_json()))) == capabilities
    assert capabilities.num_cores >= 1 and capabilities.memory_bytes > 0
    assert machine.num_gpus() >= 0
    assert isinstance(machine.shows_mounts(Path.cwd()), bool)


def test_descriptions_import_nothing_heavy(installed):
    script = (
        "import json, sys\nfrom chaos.experiment.backends import backends\n"
        "names = list(backends())\n"
        "print(json.dumps([names, sorted({'torch', 'numpy', 'rich', 'docker', 'requests'} & sys.modules.keys())]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) == [list(NAMES), []]


# ---- in an experiment ----


def test_an_unknown_one_is_refused_with_its_place_and_the_nearest_name(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text("name: n\nseed: 1\nbackend: pined\n")
    with pytest.raises(UsageError) as refused:
        load(path)
    (problem,) = refused.value.problems
    assert (problem.line, problem.key, problem.suggestion) == (3, "backend", "pinned")
    assert re.fullmatch(r"must be 'local', 'docker'.* or '\w+', not 'pined'", problem.message)


@pytest.mark.parametrize(
    ("settings", "key", "suggestion"),
    [
        ({"cores_per_node": 0}, "pinned.cores_per_node", None),
        ({"cores_per_nod": 2}, "pinned.cores_per_nod", "cores_per_node"),
        (3, "pinned", None),
    ],
)
def test_a_wrong_setting_is_refused_at_its_place(settings, key, suggestion):
    with pytest.raises(UsageError) as refused:
        from_mapping({"name": "n", "backend": "pinned", "pinned": settings}, {("pinned",): 7}, path="e.yaml")
    (problem,) = refused.value.problems
    assert (problem.line, problem.key, problem.suggestion) == (7, key, suggestion)


def test_its_options_are_those_of_the_command_line():
    options = {
        option.name: (one.settings_key, key) for one in backends().values() for key, option in one.options.items()
    }
    assert options == {
        "hosts": ("ssh", "hosts"),
        "image": ("containers", "image"),
        "node_cpus": ("containers", "cpus"),
        "node_memory": ("containers", "memory"),
        "cores_per_node": ("pinned", "cores_per_node"),
    }
    given = {"at": "step=5", "backend": "pinned", "cores_per_node": 3}
    assert from_options("kill-node", given).node_settings.cores_per_node == 3
    with pytest.raises(UsageError) as refused:
        from_options("kill-node", {**given, "cores_per_node": 0})
    assert refused.value.problems[0].key == "--cores-per-node"


def test_settings_of_another_backend_are_refused():
    with pytest.raises(UsageError, match=r"says what pinned process groups are: add backend: pinned"):
        from_mapping({"name": "n", "pinned": {"cores_per_node": 2}})


def test_a_backend_that_is_installed_changes_no_other_experiment(installed):
    plain = from_mapping({"name": "n"})
    assert "pinned" not in plain.model_dump(mode="json")
    assert from_mapping({"name": "n", "backend": "pinned", "pinned": {"cores_per_node": 2}}).model_dump(mode="json")[
        "pinned"
    ] == {"cores_per_node": 2}
    assert "pinned" in json_schema()["properties"] and settings_model().model_fields.keys() >= {"containers", "pinned"}


def test_a_fault_of_links_is_refused_by_what_its_nodes_have():
    fault = {"kind": "drop-link", "on": "link=0-2", "at": "step=3"}
    job = {"nodes": 2, "gpus_per_node": 2}
    with pytest.raises(UsageError, match="drop-link needs ranks with networks of their own, which pinned process"):
        prepare_anywhere(from_mapping({"name": "n", "backend": "pinned", "job": job, "faults": [fault]}))
    for name in ("local", "docker"):
        assert prepare_anywhere(from_mapping({"name": "n", "backend": name, "job": job, "faults": [fault]}))


# ---- plug-ins that cannot be used ----


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("class Broken: pass", "is neither a backend with a name nor a module with one"),
        (
            "from harness.backends.local.kind import Local\nclass Broken(Local):\n    name = 'local'",
            "has the name 'local', which harness.backends.local.kind has already",
        ),
        (
            "from harness.backends.docker.kind import Docker\nclass Broken(Docker):\n    name = 'broken'",
            "has the key 'containers', which docker has already",
        ),
        (
            "from harness.backends.docker.kind import Docker\n"
            "class Broken(Docker):\n    name = 'broken'\n    settings_key = 'job'",
            "has its settings under the key 'job', which every experiment has",
        ),
    ],
)
def test_a_broken_one_is_named_and_does_no_harm(tmp_path, monkeypatch, source, reason):
    module = f"broken_{abs(hash(source))}"
    install(tmp_path / "other", module, source, f"[chaos.backends]\nbroken = {module}:Broken\n")
    with known_backends(tmp_path / "other", monkeypatch):
        assert broken_backends() == {f"broken ({module}:Broken)": reason}
        assert from_mapping({"name": "n"}).backend == "local"
        with pytest.raises(UsageError, match=re.escape(f"not 'broken'; the plug-in broken ({module}:Broken) {reason}")):
            from_mapping({"name": "n", "backend": "broken"})


def test_the_doctor_names_a_broken_one(tmp_path, monkeypatch):
    install(tmp_path / "other", "broken_by_itself", "1 / 0", "[chaos.backends]\nbroken = broken_by_itself:Broken\n")
    monkeypatch.setattr("harness.doctor.examine.examine", lambda out: _nothing())
    with known_backends(tmp_path / "other", monkeypatch):
        finding = list(examine(tmp_path, {}))[-1]
    assert (finding.outcome, finding.needed_by) == ("wrong", ())
    assert finding.found.startswith("broken (broken_by_itself:Broken) cannot be imported: ZeroDivisionError")


def _nothing():
    yield from ()
    return True


def test_a_description_alone_runs_nothing():
    class Described(BackendDescription):
        """No more than a name."""

        name = "described"
        node = "a thought"

    with pytest.raises(EnvironmentFailure, match=r"the backend described cannot run jobs: derive .*:Described from"):
        kind_of(Described())


def test_an_installation_that_is_older_than_its_sources_says_so(monkeypatch):
    monkeypatch.setattr("chaos.plugins.entry_points", lambda group: ())
    from chaos.experiment import backends as registry

    registry._load.cache_clear()
    with pytest.raises(EnvironmentFailure, match="it is older than the sources, install them again"):
        backends()
