"""Nodes in Docker: each is a container with its own address; the coordinator of a built-in job is in another one.

The containers are unprivileged, see neither the engine nor the outside, run as the user who runs `chaos`, and are all
on one network, which the run makes and removes. They get their orders over the run's control server, a Unix socket, to
which it does not matter what becomes of a network.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import EnvironmentFailure
from chaos.faults.base import OwnedProcess
from chaos.host import containers, memory_limit
from chaos.host.links.nccl_transport import LOG_NAME
from chaos.host.run_processes import RUN_VARIABLE
from chaos.language.sizes import bytes_text
from harness.analysis.words import count
from harness.backends.base import AnyConfig
from harness.backends.command.start import NOT_FOUND
from harness.backends.docker.container import ADDRESS_VARIABLE, CONTROL_VARIABLE, COORDINATOR
from harness.backends.docker.engine import EngineCalls
from harness.backends.docker.examination import docker_findings
from harness.backends.docker.image import python_command
from harness.backends.docker.links import ContainerLinks
from harness.backends.docker.network import NAMES, NetworkWatch, make_network
from harness.backends.docker.node_container import NodeContainer
from harness.backends.docker.settings import HOLDER_PREFIX, ContainerSpec, plan_addresses, with_whole_paths
from harness.backends.nodes import Nodes, NodesListener
from harness.control.control_server import ControlServer
from harness.control.pid_namespaces import HostPids
from harness.network.links import new_mark
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import ProcessStarted
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import ContainerReady, NodesStarting, Warned
from mecefo_runtime.system.wire import UNIX
from mecefo_runtime.training.exporter import AUTO

if TYPE_CHECKING:
    import docker
    from docker.models.networks import Network

# Inside a container nobody else listens: the first job's coordinator has this port, the baseline's the next.
FIRST_PORT = 29400
LOOK_SECONDS = 0.5
# The run's socket as containers see it.
_CONTROL_FOLDER = "/run/mecefo-chaos"
_TAIL_BYTES = 1 << 16
_BUILD = "build one on it that has, and name it with --image (docs/how-to/containers.md)"
# Pattern in what programs write -> hint; the first match counts.
_HINTS = (
    (r"ModuleNotFoundError: No module named (\S+)", f"where the image has no module {{0}}, {_BUILD}"),
    (
        r"Read-only file system: (\S+)",
        "a container may write only to {folder} and /tmp: write {0} there",
    ),
    (
        r"(?:FileNotFoundError|No such file or directory): (['\"]/\S+)",
        "a container sees only {folder} of this machine: put what it needs there",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|Network is unreachable",
        "a container reaches only the other nodes: put what it would download into {folder}, or in the image",
    ),
)


class DockerNodes(Nodes):
    """Nodes that are containers; `logs` takes the output of every process.

    Their first processes bring `loaded` into memory first.
    """

    # A container goes on without us until it notices that nobody gives it orders.
    may_outlive = True
    # It would be in the same containers.
    can_run_beside = False
    where = "in the container"

    def __init__(
        self,
        control: ControlServer,
        logs: Path,
        emitter: Emitter,
        spec: ContainerSpec,
        engine: str,
        loaded: Sequence[str] = (),
    ) -> None:
        self._control = control
        # Containers have another working folder, and see this one at the same path, without the links on its way.
        self._logs = logs.resolve()
        self._emitter = emitter
        self._spec = spec
        self._engine = engine
        self._loaded = loaded
        self._listener: NodesListener | None = None
        self._client: docker.DockerClient | None = None
        self._network: Network | None = None
        self._addresses: Mapping[str, str] = {}
        self._run = ""
        self._mark = ""
        self._host_pids = HostPids()
        self._containers: dict[str, NodeContainer] = {}
        self._by_report: dict[str, NodeContainer] = {}
        self._num_starts: dict[str, int] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._ports: dict[str, int] = {}
        self._is_closing = False
        self._watches: list[asyncio.Task[None]] = []
        self._memory = None if spec.memory_bytes is None else MemoryWatch(spec.memory_bytes, self._on_out_of_memory)
        self._calls = EngineCalls(spec.image)
        control.nodes = self

    # ---- network and containers ----

    async def open(self, listener: NodesListener) -> None:
        """Make the network, start all containers, and wait until they take orders."""
        self._listener = listener
        self._run = os.environ[RUN_VARIABLE]
        for folder in self._spec.folders:
            try:
                # The engine mounts only what is there.
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFailure(f"cannot make the folder {folder}: {error.strerror}") from error
        self._client = await asyncio.to_thread(containers.connect, self._engine)
        network, self._addresses = await self._calls.call(self._make_network)
        self._network = network
        self._mark = new_mark()
        self._emitter.emit(NodesStarting(num_nodes=self._spec.cluster.nodes, image=self._spec.image))
        try:
            async with asyncio.TaskGroup() as starts:
                for name in self._addresses:
                    starts.create_task(self._ready(name))
        except ExceptionGroup as failures:
            # What was in the way of one is in the way of all.
            raise failures.exceptions[0] from failures
        self.links = self._container_links()
        watch = NetworkWatch(network, self._in_network, listener.on_lost, self._on_taken_out)
        self._watches.append(asyncio.create_task(watch.run(self._calls.call)))
        if self._memory is not None:
            self._watches.append(asyncio.create_task(self._memory.run()))

    async def serve(self, name: str, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A container reports to the control server; see `harness.control.control_server.NodeListener`."""
        container = self._by_report.get(name)
        if container is not None:
            await container.serve(pid, reader, writer)

    async def listen(self, job: str) -> str:
        """In the coordinator's container."""
        self._ports[job] = FIRST_PORT + len(self._ports)
        coordinator = await self._ready(COORDINATOR)
        return await coordinator.listen(job, self._ports[job])

    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """Have a process started where it belongs; its container is started first if it does not run."""
        name = COORDINATOR if order["command"] == "coordinator" else f"node-{order['node']}"
        container = await self._ready(name)
        return await container.fork({**order, "logs": str(self._logs)})

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The first process of each node's container."""
        found = [(node, self._containers.get(f"node-{node}")) for node in nodes]
        return tuple(
            OwnedProcess("container", container.process, node=node)
            for node, container in found
            if container is not None and container.is_running
        )

    def own_processes(self) -> Collection[ProcessId]:
        """The first processes of all containers."""
        return {container.process for container in self._containers.values()}

    def control_address(self, address: str) -> str:
        """The run's socket, as containers see it."""
        return f"{UNIX}{_CONTROL_FOLDER}/{Path(address.removeprefix(UNIX)).name}"

    def metrics_address(self, wanted: str) -> str:
        """Wherever the job's are: the ranks' are at their containers' addresses."""
        return AUTO

    def address_of(self, node: int) -> str:
        """See `Nodes`."""
        return self._addresses[f"node-{node}"]

    def meeting_port(self) -> int:
        """Containers have their own ports: no other process listens there."""
        return FIRST_PORT

    def as_seen(self, job: JobConfig) -> JobConfig:
        """Containers work in another folder."""
        return with_whole_paths(job)

    def nccl_log(self, job: AnyConfig) -> str:
        """The effect of a rule on a link depends on the transport that NCCL uses."""
        return str(self._logs / LOG_NAME) if self._spec.gpus and self._spec.has_links else ""

    def hint(self, log: Path, folder: Path, code: int) -> str | None:
        """What exists only on the user's machine."""
        return hint(log, folder, code)

    def _container_links(self) -> ContainerLinks | None:
        """What changes the links between the containers, where they can be changed."""
        if not self._spec.has_links:
            return None
        holders = {part: str(self._containers[HOLDER_PREFIX + part].container.id) for part in self._addresses}
        return ContainerLinks(self._spec.cluster, holders, self._addresses, self._engine, self._mark, self._ask_holder)

    async def _ask_holder(self, part: str, question: Mapping[str, Any], timeout_seconds: float) -> Mapping[str, Any]:
        return await self._containers[HOLDER_PREFIX + part].ask_holder(question, timeout_seconds)

    async def close(self) -> None:
        """Remove all that was made in the engine.

        Raises:
            EnvironmentFailure: something is still there.
        """
        self._is_closing = True
        for watch in self._watches:
            watch.cancel()
        for container in self._containers.values():
            container.forget()
        if self._client is None:
            return
        # What it was asked for it makes, whoever was interrupted; and that has to be there to be removed.
        await self._calls.answered(containers.REMOVE_TIMEOUT_SECONDS)
        try:
            await asyncio.to_thread(containers.remove, self._client, self._run)
        finally:
            self._client.close()

    # ---- containers ----

    async def _ready(self, name: str) -> NodeContainer:
        """The container of that name, once it takes orders; a new one if there is none that runs."""
        async with self._starting.setdefault(name, asyncio.Lock()):
            known = self._containers.get(name)
            if known is not None and known.is_running:
                return known
            if self._is_closing:
                raise EnvironmentFailure("the run has ended")
            if self._spec.has_links and not name.startswith(HOLDER_PREFIX):
                await self._ready(HOLDER_PREFIX + name)
            began_seconds = asyncio.get_running_loop().time()
            container = await self._start(name)
            try:
                await container.ready()
            except EnvironmentFailure as error:
                if self._spec.memory_bytes is None or not name.startswith("node-"):
                    raise
                limit = bytes_text(self._spec.memory_bytes)
                raise EnvironmentFailure(
                    f"{error}. Its memory is limited to {limit}: a node takes some 350 MiB"
                ) from error
            self._emitter.emit(
                ContainerReady(
                    container=name,
                    container_attempt=self._num_starts[name],
                    start_seconds=asyncio.get_running_loop().time() - began_seconds,
                )
            )
            if name == COORDINATOR:
                for job, port in self._ports.items():
                    await container.listen(job, port)
            return container

    async def _start(self, name: str) -> NodeContainer:
        self._num_starts[name] = number = self._num_starts.get(name, 0) + 1
        report, log = name if number == 1 else f"{name}.{number}", self._logs / f"container-{name}.log"
        if name.startswith(HOLDER_PREFIX):
            python = python_command("harness.backends.docker.holder", report)
        else:
            loaded = self._loaded if self._spec.has_ranks(name) else ()
            python = python_command("harness.backends.docker.container", report, *loaded)
        # With its output in the run's folder: what it says before it reports must not go with it.
        command = ["sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log), *python]
        container = await self._calls.retry(partial(self._launch, name, report, log, command))
        await self._calls.call(container.reload)
        container.watch()
        process = container.process
        if self._memory is not None and name.startswith("node-"):
            self._memory.begin(name, process)
        self._emitter.emit(
            ProcessStarted(role="container", container=name, started_pid=process.pid, start_ticks=process.start_ticks)
        )
        return container

    async def _launch(self, name: str, report: str, log: Path, command: list[str]) -> NodeContainer:
        """A new container that runs. The engine removes one that it cannot start, so the next try takes another."""
        created = await self._calls.call(partial(self._create, f"mecefo-chaos-{self._run}-{report}", name, command))
        container = NodeContainer(report, created, log, self._host_pids, self._on_exit, self._on_end)
        # Before it can report.
        self._by_report[report] = self._containers[name] = container
        await self._calls.call(created.start)
        return container

    def _create(self, name: str, part: str, command: list[str]) -> Any:
        assert self._client is not None
        address = self._addresses[part.removeprefix(HOLDER_PREFIX)]
        return self._client.containers.create(
            self._spec.image,
            command,
            name=name,
            entrypoint=[],
            labels={containers.LABEL: self._run, containers.PART_LABEL: part},
            environment={
                RUN_VARIABLE: self._run,
                CONTROL_VARIABLE: self.control_address(self._control.address),
                ADDRESS_VARIABLE: address,
                "HOME": "/tmp",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            **self._where(part, address),
            **self._spec.settings(part, self._mounts()),
        )

    def _where(self, part: str, address: str) -> dict[str, Any]:
        """The network that a container is in: one of its own, or its holder's."""
        assert self._client is not None and self._network is not None
        holder = self._containers.get(HOLDER_PREFIX + part)
        if holder is not None:
            return {"network_mode": f"container:{holder.container.id}"}
        host = self._client.api.create_endpoint_config(ipv4_address=address)
        name = str(self._network.name)
        return {"hostname": part, "network": name, "networking_config": {name: host}, **NAMES}

    def _mounts(self) -> list[tuple[Path, str, bool]]:
        """What containers see of this machine: (folder or file, where inside, whether they may write to it)."""
        control = Path(self._control.address.removeprefix(UNIX)).resolve().parent
        return [*self._spec.mounts(), (control, _CONTROL_FOLDER, True)]

    def _make_network(self) -> tuple[Network, Mapping[str, str]]:
        assert self._client is not None
        has_coordinator = self._spec.traits.has_layout
        plans = plan_addresses(self._spec.cluster.nodes, self._run, has_coordinator=has_coordinator)
        return make_network(self._client, f"mecefo-chaos-{self._run}", {containers.LABEL: self._run}, plans)

    def _in_network(self) -> dict[str, str]:
        """The containers that are to be in the run's network: name -> id."""
        return {
            name: str(one.container.id)
            for name, one in self._containers.items()
            if one.is_running and not (self._spec.has_links and name in self._addresses)
        }

    def _on_out_of_memory(self, message: str) -> None:
        if self._listener is not None:
            self._listener.on_out_of_memory(message)

    def _on_taken_out(self, name: str, network: str) -> None:
        part = name.removeprefix(HOLDER_PREFIX)
        message = f"{part} was removed from the run's network {network}: it reaches no other node"
        self._emitter.emit(Warned(message=message))

    def _on_end(self, name: str) -> None:
        """A container has ended. Of a node and the coordinator, those who ran in it are missed; of a network nobody."""
        if self._memory is not None:
            # Of its first process itself, while there is still something to look at.
            self._memory.look()
        if name.startswith(HOLDER_PREFIX) and not self._is_closing:
            part = name.removeprefix(HOLDER_PREFIX).partition(".")[0]
            self._emitter.emit(Warned(message=f"the container that holds the network of {part} ended: it has no links"))

    def _on_exit(self, process: ProcessId, code: int) -> None:
        if code and self._memory is not None:
            self._memory.look()
        if self._listener is not None:
            self._listener.on_exit(process, code)


def require_image(image: str) -> str:
    """Before anything is made; returns where the engine is.

    Raises:
        EnvironmentFailure: there is no engine that would do, or it has no such image, or one of other sources.
    """
    for finding in docker_findings(image, tries_network=False):
        if finding.stops("docker"):
            raise EnvironmentFailure(f"{finding.name}: {finding.found}; {finding.remedy}")
    with containers.engine() as client:
        return containers.url_of(client)


class MemoryWatch:
    """Looks whether the out-of-memory killer has ended processes of a container that may use `limit_bytes`.

    `on_kill` is called with a message, once for each look that finds some.
    """

    def __init__(self, limit_bytes: int, on_kill: Callable[[str], None]) -> None:
        self._limit = bytes_text(limit_bytes)
        self._on_kill = on_kill
        # By container: its control group, and the number of its processes that were reported.
        self._groups: dict[str, Path] = {}
        self._told: dict[str, int] = {}

    def begin(self, name: str, process: ProcessId) -> None:
        """From now on the container `name` is the one whose first process this is."""
        self._told[name] = 0
        if (group := memory_limit.group_of(process)) is not None:
            self._groups[name] = group

    async def run(self) -> None:
        """Look again and again, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look once. The control group of a container that has ended is gone, too."""
        for name, group in self._groups.items():
            num_kills = memory_limit.oom_kills_in(group) or 0
            if (num_new := num_kills - self._told[name]) > 0:
                self._told[name] = num_kills
                self._on_kill(
                    f"{name} reached its memory limit, {self._limit}: the kernel ended "
                    f"{count(num_new, 'process')} of it. Raise --node-memory"
                )


def hint(log: Path, folder: Path, code: int) -> str | None:
    """What may be done, by what a command wrote into `log` that ran in `folder` and ended with `code`.

    None: nothing is known of it.
    """
    if code == NOT_FOUND:
        return f"where its image has no such program, {_BUILD}"
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    for sign, words in _HINTS:
        if match := re.search(sign, text):
            return words.format(*match.groups(), folder=folder)
    return None
