"""The engine that is not there, may not be used, or is another one: each is told apart, with what to do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import SimpleNamespace

import docker
import pytest

from chaos.errors import EnvironmentFailure, HealError, UsageError
from chaos.experiment.experiment import experiment_hash
from chaos.experiment.reading import from_options
from chaos.host import containers
from chaos.undo import residue
from chaos.undo.residue.base import AuditScope

pytestmark = pytest.mark.unit


def test_no_engine(tmp_path):
    with pytest.raises(EnvironmentFailure, match="no Docker engine that answers: start it"):
        containers.connect(f"unix://{tmp_path}/none.sock")


def test_a_socket_that_nobody_serves(tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(EnvironmentFailure, match="start it"):
        containers.connect(f"unix://{path}")


def test_an_engine_that_says_nothing(tmp_path):
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(EnvironmentFailure, match="the Docker engine does not answer"):
            containers.connect(f"unix://{path}", timeout_seconds=1)


def test_something_else_that_answers(tmp_path):
    path = tmp_path / "web.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            # The first one only looks whether somebody is there.
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(EnvironmentFailure, match="does not answer"):
            containers.connect(f"unix://{path}", timeout_seconds=5)
        server.join()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "usermod -aG docker"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))", "start it"),
        ("('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))", "start it"),
        ("500 Server Error: disk full", "disk full"),
    ],
)
def test_what_to_do(said, told):
    assert told in containers.why_no_engine(Exception(said))


def test_where_nobody_can_look_something_may_be_left(tmp_path):
    url = f"unix://{tmp_path}/none.sock"
    scope = AuditScope("r", (tmp_path,), tmp_path / "ledger.jsonl", url)
    (told,) = residue.look(scope)["Docker"]
    assert told.startswith("engine: perhaps some of the run: there is no Docker engine")
    assert residue.look(AuditScope("r", (tmp_path,), tmp_path / "ledger.jsonl"))["Docker"] == frozenset()
    with pytest.raises(HealError, match="nobody knows whether"):
        containers.is_container_running(url, "0123456789abcdef")
    with pytest.raises(OSError, match="no Docker engine"):
        containers.run_in_container(url, "0123456789abcdef", ["true"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"node_memory": "1GiB"}, "--node-memory: says what containers are: add --backend docker"),
        ({"backend": "docker", "network": "loopback"}, "--network: every container has its own network"),
        (
            {"backend": "docker", "nodes": 2, "gpus_per_node": 1, "command": ("torchrun", "--standalone", "train.py")},
            "torchrun --standalone is a job of one node",
        ),
        ({"backend": "docker", "node_cpus": 0.0}, "--node-cpus"),
        ({"backend": "docker", "node_memory": "lots"}, "--node-memory"),
        ({"backend": "docker", "node_memory": "1MiB"}, "--node-memory: must be at least 64MiB"),
    ],
)
def test_what_containers_cannot_be_is_refused_with_the_option_that_said_so(options, told):
    with pytest.raises(UsageError) as refused:
        from_options("kill-process", {"at": "step=5", "on": "rank=1", **options})
    assert told in str(refused.value)


def test_what_a_container_is_comes_from_the_command_line_and_is_part_of_the_experiment():
    plain = from_options("kill-node", {"at": "step=5", "backend": "docker"})
    small = from_options("kill-node", {"at": "step=5", "backend": "docker", "node_cpus": 1.5, "node_memory": "2GiB"})
    assert (small.node_settings.cpus, small.node_settings.memory) == (1.5, 2 << 30)
    assert small.node_settings.image == plain.node_settings.image == "mecefo-chaos"
    assert experiment_hash(small) != experiment_hash(plain)


class Removable:
    """A container of an engine that goes when `act` has returned."""

    def __init__(self, name, engine, act):
        self.name, self.status = name, "running"
        self._engine, self._act = engine, act

    def remove(self, *, force, v):
        assert force and v
        self._act()
        self._engine.remove(self)


def client_of(there):
    def listed(**_):
        return list(there)

    return SimpleNamespace(containers=SimpleNamespace(list=listed), networks=SimpleNamespace(list=lambda **_: []))


def test_containers_are_removed_all_at_once_and_not_in_turn():
    # Nobody passes before all have come.
    together, there = threading.Barrier(5, timeout=60), []
    there += [Removable(f"node-{number}", there, together.wait) for number in range(5)]
    assert containers.remove(client_of(there), "r") == [f"container node-{number}" for number in range(5)]
    assert not there


def test_one_that_cannot_be_removed_keeps_none_of_the_others():
    def refuse():
        raise docker.errors.APIError("driver failed")

    there = []
    there += [Removable("stuck", there, refuse), *(Removable(f"node-{n}", there, lambda: None) for n in range(3))]
    with pytest.raises(HealError, match="cannot be removed: driver failed"):
        containers.remove(client_of(there), "r", timeout_seconds=0.0)
    assert [one.name for one in there] == ["stuck"]
