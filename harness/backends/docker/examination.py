"""What `--backend docker` needs: the SDK, an engine that this user may use, the image, and room for a network."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from harness.backends.docker.image import DEFAULT_IMAGE, PURPOSE_LABEL, image_digest, source_digest
from harness.backends.docker.network import make_network
from harness.backends.docker.settings import ADDRESSES, PREFIX_LENGTH
from harness.doctor.finding import Check, Finding
from mecefo_runtime.system.devices import has_driver

if TYPE_CHECKING:
    from docker import DockerClient

# An engine that takes longer than this to say what it is would make no run start in time.
TIMEOUT_SECONDS = 30
# The oldest that was tried: engine 20.10.
OLDEST_API = (1, 41)
# What the SDK goes by.
_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
# The engine puts it into every container.
_CONTAINER_MARK = Path("/.dockerenv")
DEFAULT_SOCKET = Path("/var/run/docker.sock")

SDK = Check("Docker SDK", "--backend docker", ("docker",))
ENGINE = Check("Docker engine", "--backend docker", ("docker",))
IMAGE = Check("image", "image of the nodes, with the same code as here", ("docker",))
ADDRESS_RANGE = Check("container network", "each run creates one, and removes it", ("docker",))
GPU_RUNTIME = Check("GPUs in containers", "--backend docker with ranks on CUDA devices")


def how_to_build(image: str) -> str:
    """What to do where there is no such image, or one of other sources."""
    tag = "" if image == DEFAULT_IMAGE else f" --tag {image}"
    return f"build it in this project's folder: docker/build{tag} (docs/how-to/containers.md), or give another --image"


def how_to_build_on(image: str) -> str:
    """What to do where it is an image of something else."""
    return (
        f"build one of yours on it, in this project's folder: docker/build --tag NAME --build-arg BASE={image} "
        "(docs/how-to/containers.md), and take that: --image NAME"
    )


def docker_findings(image: str = DEFAULT_IMAGE, *, tries_network: bool = True) -> Iterator[Finding]:
    """All there is to say, up to what makes the rest unanswerable.

    Whoever makes a network of their own anyway need not have another one made before.
    """
    try:
        sdk_version = version("docker")
        import docker
    except (PackageNotFoundError, ImportError):
        yield SDK.missing("not installed", "pip install docker")
        return
    yield SDK.ok(sdk_version)
    url = os.environ.get("DOCKER_HOST", "")
    try:
        _knock(url)
        # Asks the engine for its version.
        client = docker.from_env(timeout=TIMEOUT_SECONDS)
    except Exception as error:
        # The SDK lets errors of half a dozen libraries through.
        yield no_engine(error, url)
        return
    try:
        yield ENGINE.looked(lambda: _engine(client, url))
        yield IMAGE.looked(lambda: _image(client, image))
        if tries_network:
            yield ADDRESS_RANGE.looked(lambda: _network(client))
        if has_driver():
            yield GPU_RUNTIME.looked(lambda: _gpus(client))
    finally:
        client.close()


def why_no_docker(image: str = DEFAULT_IMAGE) -> str | None:
    """Why nothing can run with `--backend docker` here, in one line; None: it can."""
    for finding in docker_findings(image):
        if finding.stops("docker"):
            return f"{finding.name}: {finding.found}"
    return None


def _knock(url: str) -> None:
    """Connect to a local engine, and no more: where that fails, the SDK (7.2) leaves a socket open.

    Raises:
        OSError: nobody is there, or this user may not ask.
    """
    scheme, _, path = (url or f"unix://{DEFAULT_SOCKET}").partition("://")
    if scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.settimeout(TIMEOUT_SECONDS)
            knocking.connect(path)


def no_engine(error: BaseException, url: str) -> Finding:
    """Why there is none, from what the SDK raised and the DOCKER_HOST that it went by."""
    texts = [str(one) for one in _chain(error)]
    kinds = [type(one) for one in _chain(error)]
    place = url or f"unix://{DEFAULT_SOCKET}"
    if PermissionError in kinds or any("Permission denied" in text for text in texts):
        return ENGINE.wrong(
            f"this user has no permission for {place}",
            "sudo usermod -aG docker $USER, and log in again; or an engine of your own (rootless Docker)",
        )
    if FileNotFoundError in kinds or any("No such file" in text for text in texts):
        return ENGINE.missing(f"there is no {place}", _how_to_start(url))
    if ConnectionRefusedError in kinds or any("Connection refused" in text for text in texts):
        return ENGINE.missing(f"nothing answers at {place}: it is not running", _how_to_start(url))
    chosen = [name for name in _VARIABLES if os.environ.get(name)]
    remedy = (
        f"unset {', '.join(chosen)} to use this machine's own engine" if chosen else "`docker version` may show more"
    )
    return ENGINE.wrong(f"{place}: {texts[0]}", remedy)


def _how_to_start(url: str) -> str:
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}") / "docker.sock"
    if url:
        return f"DOCKER_HOST={url} names it: start that engine, or unset the variable"
    if _CONTAINER_MARK.exists():
        return "this is a container, and no engine runs in it: run chaos outside of it, or start dockerd in it"
    if own.exists():
        return f"there is one of yours: export DOCKER_HOST=unix://{own}"
    context = _context()
    if context is not None:
        return (
            f"the command `docker` uses its context {context}, which the SDK does not: export DOCKER_HOST=$(docker "
            "context inspect --format '{{.Endpoints.docker.Host}}')"
        )
    return (
        "sudo systemctl start docker (or run dockerd); if it is not installed: https://docs.docker.com/engine/install"
    )


def _context() -> str | None:
    """The context that the command line of Docker uses, unless it is the default one."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        chosen = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return None
    return chosen if isinstance(chosen, str) and chosen != "default" else None


def _engine(client: DockerClient, url: str) -> Finding:
    said, info = client.version(), client.info()
    rootless = " rootless," if any("rootless" in option for option in info.get("SecurityOptions") or ()) else ""
    told = f"{said['Version']}, API {said['ApiVersion']},{rootless} cgroup v{info.get('CgroupVersion', '1')}"
    if url and not url.startswith("unix://"):
        return ENGINE.wrong(
            f"{told}, at {url}: it is on another machine, which faults cannot reach",
            "unset DOCKER_HOST to use this machine's engine, or run chaos over there",
        )
    if said.get("KernelVersion") != os.uname().release:
        return ENGINE.wrong(
            f"{told}, in a virtual machine (kernel {said.get('KernelVersion')}), where faults cannot reach",
            "use an engine that runs on this system, not Docker Desktop's",
        )
    if tuple(int(part) for part in said["ApiVersion"].split(".")) < OLDEST_API:
        return ENGINE.wrong(told, f"needs API {'.'.join(map(str, OLDEST_API))} (engine 20.10) or newer")
    return ENGINE.ok(told)


def _image(client: DockerClient, image: str) -> Finding:
    from docker.errors import APIError, ImageNotFound

    try:
        theirs = image_digest(client, image)
    except ImageNotFound:
        return IMAGE.missing(f"there is no image {image}", how_to_build(image))
    except APIError as error:
        if "invalid reference format" not in str(error):
            raise
        return IMAGE.wrong(f"{image!r} cannot be an image's name: {error.explanation}", "name it as NAME or NAME:TAG")
    if theirs is None:
        # Not under its own name, which may be that of somebody else's image.
        remedy = how_to_build(image) if image == DEFAULT_IMAGE else how_to_build_on(image)
        return IMAGE.wrong(f"{image} does not contain this project, or an older state of it", remedy)
    if theirs != (ours := source_digest()):
        return IMAGE.wrong(
            f"{image} was built from other sources ({theirs[:12]}, here {ours[:12]})", how_to_build(image)
        )
    size_bytes = client.images.get(image).attrs["Size"]
    return IMAGE.ok(f"{image}, {size_bytes / 1e9:.2f} GB, the same sources as here")


def _network(client: DockerClient) -> Finding:
    """Make one and remove it: the engine's own word that it can be done.

    In any free range, not the same for all, and in another one where a run or another `chaos doctor` was sooner.
    """
    taken = [*_subnets_of(client), *_routes()]
    free = [subnet for subnet in ADDRESSES.subnets(new_prefix=PREFIX_LENGTH) if not any(map(subnet.overlaps, taken))]
    if not free:
        return ADDRESS_RANGE.wrong(
            f"all of {ADDRESSES} is taken by the engine's networks and this machine's routes",
            "docker network ls shows them: remove unused ones (docker network rm NAME)",
        )
    Random().shuffle(free)
    name = f"mecefo-chaos-doctor-{secrets.token_hex(4)}"
    network, _ = make_network(client, name, {PURPOSE_LABEL: "doctor"}, ((subnet, {}) for subnet in free))
    network.remove()
    return ADDRESS_RANGE.ok(f"can be made, {len(free)} ranges of addresses are free")


def _subnets_of(client: DockerClient) -> Iterator[IPv4Network]:
    for network in client.networks.list():
        for pool in (network.attrs.get("IPAM") or {}).get("Config") or ():
            yield from _version_4([pool.get("Subnet", "")])


def _routes() -> Iterator[IPv4Network]:
    """Where this machine sends packets to, the default route aside (proc(5), /proc/net/route)."""
    for line in Path("/proc/net/route").read_text(encoding="utf-8").splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        address, netmask = (int.from_bytes(bytes.fromhex(word), "little") for word in (destination, mask))
        if netmask:
            yield IPv4Network((address, netmask.bit_count()), strict=False)


def _version_4(texts: Iterable[str]) -> Iterator[IPv4Network]:
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        if isinstance(network, IPv4Network):
            yield network


def _gpus(client: DockerClient) -> Finding:
    runtimes: dict[str, Any] = client.info().get("Runtimes") or {}
    if "nvidia" in runtimes or client.info().get("CDISpecDirs"):
        return GPU_RUNTIME.ok("the engine has NVIDIA's runtime" if "nvidia" in runtimes else "by CDI")
    return GPU_RUNTIME.missing(
        "this machine has GPUs that containers cannot use",
        "install the NVIDIA Container Toolkit, and restart the engine",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it came of, also where a library only put it among its arguments."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop(0)
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            inner = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
            waiting += [other for other in inner if isinstance(other, BaseException)]
