"""Hosts on one machine: each with PID, network, UTS, IPC, mount and time namespaces of its own.

    with cluster_folder() as folder, Hosts(folder / "hosts", 4, clock={2: 3}) as hosts:  # host 2 is 3 s ahead
        hosts.run(1, "ping", "-c1", hosts.name(2))    # 0 is the head: a login node, with a cluster's services
        hosts.run(1, "id", "-un", user="alice")
        hosts.crash(2); hosts.boot(2); hosts.cut(3); hosts.heal(3)

Host N has the address 10.77.0.N, the head 10.77.0.254. The bridge between them is in the network namespace of a frame
around all, which has no way out; its PID namespace holds those of the hosts, so that one SIGKILL ends everything, a
daemon with a session of its own included. No host sees another's processes, neither does the head. A host shares the
file system with this machine, but for what a real one has to itself: /tmp, /dev/shm and /run (empty at each boot), a
local disk that outlasts a crash (`local`), and its boot id. Nothing of this machine changes: users, /etc/hosts and
root's home are mounts inside.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.folders import closed_on_the_way

SUBNET = "10.77.0"
# The namespaces around all hosts, where a number of a host is expected.
_FRAME = -1
USERS = {"alice": 4242, "bob": 4243}
ROOT = Path(__file__).resolve().parents[2]
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
PROGRAMS = ("ip", "unshare", "nsenter", "setpriv", "mount")
PACKAGES = "iproute2 util-linux"
# Much longer than a host takes to boot on a busy machine.
TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.005
_NEW = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
# The first process of a host. It ignores SIGCHLD, so that the kernel reaps the orphans that it inherits: as zombies
# they would look like tasks that survived. (dash's `trap '' CHLD` does not do it.)
_INIT = "exec env --ignore-signal=CHLD sleep infinity"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PATH_OF_ROOT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl
_LEFT_OVER = ROOT / "tests/cluster/_left_over.py"


def why_no_hosts(programs: Sequence[str] = (), packages: str = "") -> str | None:
    """Why there can be no hosts with `programs` on this machine, None if there can."""
    if os.geteuid() != 0:
        return "only root can make hosts of namespaces"
    path = f"{os.environ.get('PATH', '')}:{_PATH_OF_ROOT}"
    if missing := [one for one in (*PROGRAMS, *programs) if shutil.which(one, path=path) is None]:
        return f"no {', '.join(missing)} (Debian's packages {PACKAGES} {packages})".replace(" )", ")")
    for folder in _needed():
        if not folder.stat().st_mode & 0o005:
            return f"other users cannot read {folder}"
    tried = subprocess.run(["unshare", *_NEW, "--time", "true"], capture_output=True, text=True)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode != 0 else None


class Hosts:
    """`num` hosts and a head with their files in `folder`, from entering to leaving."""

    def __init__(
        self,
        folder: Path | str,
        num: int = 4,
        *,
        clock: Mapping[int, int] | None = None,
        private: Sequence[str] = PRIVATE,
        root: Path | str = "",
        prefix: str = "node",
        outlive: bool = False,
    ) -> None:
        """Nothing is started yet.

        `clock`: by how many whole seconds CLOCK_MONOTONIC and CLOCK_BOOTTIME of a host differ from this machine's.
        `private`: folders that are empty, and the host's own, at each boot.
        `root`: another Debian (debootstrap), whose programs the hosts have.
        `prefix`: of the hosts' names. Slurm's control groups are named for the hosts: see `Slurm`.
        `outlive`: do not die with this process.
        """
        self.folder = Path(folder).resolve()
        self.num = num
        self.clock = dict(clock or {})
        self.private = tuple(private)
        self.root = str(Path(root).resolve()) if root else ""
        self.prefix = prefix
        self._outlive = outlive
        self._pids: dict[int, int] = {}

    @classmethod
    def of(cls, folder: Path | str) -> Self:
        """Those that another process started."""
        state = json.loads((Path(folder) / "hosts.json").read_text())
        clock = {int(node): offset for node, offset in state.pop("clock").items()}
        return cls(folder, state.pop("num"), clock=clock, outlive=True, **state)

    # ---- life ----

    def start(self) -> Self:
        """Start the head and all hosts.

        Raises:
            PermissionError: other users cannot enter the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        if closed := closed_on_the_way(self.folder):
            raise PermissionError(f"alice cannot enter {', '.join(map(str, closed))}: take another folder")
        self._write_files()
        self._begin_boot(_FRAME)
        self._await_boot(_FRAME)
        self.run(_FRAME, "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up")
        for node in (0, *self.nodes):
            self._begin_boot(node)
        for node in (0, *self.nodes):
            self._await_boot(node)
        return self

    def boot(self, node: int) -> None:
        """Start `node` again after a crash, with empty `private` folders, its local disk, and another boot id."""
        self._begin_boot(node)
        self._await_boot(node)

    def crash(self, node: int) -> None:
        """Cut the power of `node`: all its processes die at the same time, and its peers get no FIN and no RST."""
        # First the cable: what dies would still say goodbye.
        self.run(_FRAME, "ip", "link", "del", f"v{node}")
        self._kill(node)

    def cut(self, node: int) -> None:
        """Take `node` off the network; it runs on."""
        self.run(_FRAME, "ip", "link", "set", f"v{node}", "down")

    def heal(self, node: int) -> None:
        """Take `node` back to the network."""
        self.run(_FRAME, "ip", "link", "set", f"v{node}", "up")

    def stop(self) -> None:
        """End all hosts and remove the files."""
        self._kill(_FRAME)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- use ----

    @property
    def nodes(self) -> range:
        """The numbers of the hosts; the head, 0, is none of them."""
        return range(1, self.num + 1)

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return [self.name(node) for node in self.nodes]

    @property
    def local(self) -> Path:
        """On each host its own disk, which outlasts a crash. From outside: `disk(node)`."""
        return self.folder / "local"

    def disk(self, node: int) -> Path:
        """The local disk of `node`, as this process finds it."""
        return self.folder / f"disk.{node}"

    def home(self, user: str = "alice") -> Path:
        """The home of `user`, which all hosts share."""
        return self.folder / f"home-{user}"

    def name(self, node: int) -> str:
        """The name of `node`."""
        return f"{self.prefix}{node}" if node else "head"

    def address(self, node: int) -> str:
        """The address of `node`."""
        return f"{SUBNET}.{node or 254}"

    def is_up(self, node: int) -> bool:
        """Whether `node` has power."""
        return Path(f"/proc/{self.pid(node)}/ns").exists() and _state(self.pid(node)) not in "ZX"

    def pid(self, node: int) -> int:
        """The first process of `node`, by the number that it has outside."""
        if node not in self._pids:
            self._pids[node] = int((self.folder / f"pid.{node}").read_text())
        return self._pids[node]

    def environment(self, user: str | None) -> dict[str, str]:
        """What a login sets. Nothing is inherited: a test's own variables are none of the hosts'."""
        home = "/root" if user is None else str(self.home(user))
        name = user or "root"
        path = f"{sys.prefix}/bin:{_PATH_OF_ROOT}"
        variables = {"HOME": home, "USER": name, "LOGNAME": name, "SHELL": "/bin/bash", "PATH": path, "LANG": "C.UTF-8"}
        return {**variables, "CHAOS_STATE": f"{self.local}/state-{name}", "NO_COLOR": "1"}

    def command(
        self,
        node: int,
        *words: str,
        user: str | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """What to start here so that `words` run on `node`, as `user` (None: root), in its home unless `cwd` is given.

        It dies with its parent: nsenter passes no signal on.
        """
        variables = {**self.environment(user), **(env or {})}
        folder = str(cwd or (self.home(user) if user else "/"))
        uid = str(USERS[user]) if user else ""
        as_user = ["--reuid", uid, "--regid", uid, "--clear-groups"] if user else []
        clock = ["-T"] if node in self.clock else []
        where = ["--", "chroot", self.root, "env", "-C", folder] if self.root else [f"--wdns={folder}", "--"]
        set_variables = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        enter = ["nsenter", "-t", str(self.pid(node)), "-n", "-u", "-i", "-m", "-p", *clock, *where]
        return [*enter, "setpriv", "--pdeathsig", "KILL", *as_user, *set_variables, *words]

    def run(
        self,
        node: int,
        *words: str,
        user: str | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run `words` on `node` to their end; `options` are those of `subprocess.run`, and failures raise.

        Raises:
            subprocess.CalledProcessError: they failed; what they printed is on standard error.
        """
        options = {"check": True, "text": True, "capture_output": True, "stdin": subprocess.DEVNULL} | options
        try:
            return subprocess.run(self.command(node, *words, user=user, cwd=cwd, env=env), **options)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{shlex.join(words)}: {error.returncode}\n{error.stdout or ''}{error.stderr or ''}")
            raise

    def popen(
        self,
        node: int,
        *words: str,
        user: str | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start `words` on `node`; `options` are those of `subprocess.Popen`."""
        options = {"text": True, "stdin": subprocess.DEVNULL} | options
        return subprocess.Popen(self.command(node, *words, user=user, cwd=cwd, env=env), **options)

    def python(self, node: int, *arguments: str, user: str | None = "alice", **options: Any) -> str:
        """What this environment's Python prints on `node`."""
        return self.run(node, sys.executable, *arguments, user=user, **options).stdout

    def chaos(
        self, node: int, *arguments: str, user: str = "alice", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run this environment's `chaos` on `node`, whatever its exit code is."""
        return self.run(node, f"{sys.prefix}/bin/chaos", *arguments, user=user, **{"check": False, **options})

    def processes(self, node: int, text: str) -> list[int]:
        """Processes of `node` whose command line has `text` in it, by their numbers there."""
        lines = self.run(node, "ps", "-eww", "-o", "pid=,args=").stdout.splitlines()
        found = [line.split(None, 1) for line in lines]
        return [int(pid) for pid, command in found if text in command and not command.startswith("ps -eww")]

    def listening(self, node: int) -> list[str]:
        """The addresses at which `node` listens for TCP, and who does, as `ss` has them."""
        return self.run(node, "ss", "-Hltnp").stdout.splitlines()

    def leftovers(self, node: int) -> list[str]:
        """What there is on `node` and would not be on a host where nothing was ever run, a line for each.

        Processes of the users or of a run, what lies in /dev/shm and /tmp, firewall rules, qdiscs, mounts, and what the
        users' state folders name as open.
        """
        states = [f"{self.local}/state-{user}" for user in ("root", *USERS)]
        uids = ",".join(map(str, USERS.values()))
        at_boot = f"{self.folder}/mounts.{node}"
        text = self.python(node, "-I", "-S", str(_LEFT_OVER), uids, str(self.folder), at_boot, *states, user=None)
        return text.splitlines()

    def all_leftovers(self) -> list[str]:
        """The leftovers of all hosts, each with the name of its host; a host without power has none."""
        return [f"{self.name(node)}: {line}" for node in (0, *self.nodes) for line in self._leftovers_if_up(node)]

    def clear(self) -> None:
        """End every process that `leftovers` names, on all hosts."""
        for node in (0, *self.nodes):
            lines = [line.split() for line in self._leftovers_if_up(node)]
            if pids := [words[1] for words in lines if words[0] == "process"]:
                self.run(node, "kill", "-KILL", *pids, check=False)

    # ---- inside ----

    def _leftovers_if_up(self, node: int) -> list[str]:
        return self.leftovers(node) if self.is_up(node) else []

    def _write_files(self) -> None:
        """All files that the hosts have as their own."""
        names = ["127.0.0.1 localhost", f"{SUBNET}.254 head"] + [f"{SUBNET}.{i} {self.name(i)}" for i in self.nodes]
        self._write("hosts", "\n".join(names) + "\n")
        users, groups = (Path(f"{self.root}/etc/{one}").read_text() for one in ("passwd", "group"))
        for user, uid in USERS.items():
            self.home(user).mkdir(exist_ok=True)
            os.chown(self.home(user), uid, uid)
            users += f"{user}:x:{uid}:{uid}::{self.home(user)}:/bin/bash\n"
            groups += f"{user}:x:{uid}:\n"
        self._write("passwd", users)
        self._write("group", groups)
        if self.root:
            # A file can be mounted only where there is one.
            Path(f"{self.root}/etc/hosts").touch()
        kept = {"num": self.num, "clock": self.clock, "private": self.private, "root": self.root, "prefix": self.prefix}
        self._write("hosts.json", json.dumps(kept))
        for name in ("outer-proc", "local"):
            (self.folder / name).mkdir(exist_ok=True)
        for node in (0, *self.nodes):
            self.disk(node).mkdir(exist_ok=True)
            self.disk(node).chmod(0o1777)

    def _begin_boot(self, node: int) -> None:
        """Start the first process of `node`, and give it its network."""
        for stale in ("pid", "net"):
            (self.folder / f"{stale}.{node}").unlink(missing_ok=True)
        self._pids.pop(node, None)
        offset = str(self.clock.get(node, 0))
        clock = ["--time", "--monotonic", offset, "--boottime", offset] if node in self.clock else []
        is_host = node != _FRAME
        script = self._script_of_host(node) if is_host else self._script_of_frame()
        words = ["unshare", *_NEW, *clock, "sh", "-c", "\n".join(["set -e", *script, _INIT])]
        if is_host:
            words = ["nsenter", "-t", str(self.pid(_FRAME)), "-n", "-u", "-i", "-m", "-p", "--", *words]
        with (self.folder / f"out.{node}").open("ab") as out:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                # The hosts are in the PID namespace of the frame, and die with it.
                preexec_fn=None if self._outlive or is_host else _die_with_parent,
            )
        # Nobody waits for it: no warning when it is collected.
        child.returncode = 0
        if is_host:
            self._connect(node)

    def _await_boot(self, node: int) -> None:
        self._pids[node] = self._read_pid(f"pid.{node}")

    def _connect(self, node: int) -> None:
        """Lay the cable of `node`."""
        # `ip link ... netns` takes a pid, not a path: the one by which the frame knows that process.
        inside = _pid_in_first_namespace(self._read_pid(f"net.{node}"))
        # A host that boots again with another hardware address cannot be reached for seconds: the others' ARP tables
        # have the old one.
        address = f"02:00:0a:4d:00:{node:02x}"
        self.run(
            _FRAME,
            "sh",
            "-ec",
            f"""ip link del v{node} 2>/dev/null || true
                ip link add v{node} type veth peer name eth0 address {address} netns {inside}
                ip link set v{node} master br0 up""",
        )

    def _script_of_frame(self) -> list[str]:
        """What the first process of the frame does: what all hosts have alike is mounted once."""
        root, folder = self.root, self.folder
        # `self` is the reader's number in the PID namespace of the mounted proc: here still that of this machine.
        return [
            "read pid rest < /proc/self/stat",
            f"mount --bind /proc {folder}/outer-proc",
            *self._own_identity(_FRAME),
            *(f"mount --rbind {one} {root}{one}" for one in ("/tmp", "/dev", "/sys") if root),
            *(f"mount --bind {folder}/{one} {root}/etc/{one}" for one in ("hosts", "passwd", "group")),
            *self._own_places(_FRAME),
            *self._report("pid", _FRAME),
        ]

    def _script_of_host(self, node: int) -> list[str]:
        """What the first process of a host does."""
        return [
            f"read pid rest < {self.folder}/outer-proc/self/stat",
            *self._report("net", node),
            *self._own_identity(node),
            f"umount {self.folder}/outer-proc",
            *self._own_places(node),
            "ip link set lo up",
            "until ip link show eth0 >/dev/null 2>&1; do sleep .01; done",
            f"ip addr add {self.address(node)}/24 dev eth0",
            "ip link set eth0 up",
            *self._report("pid", node),
        ]

    def _report(self, name: str, node: int) -> list[str]:
        """Write the shell's `pid`, whole or not at all; and what is mounted by then."""
        # In another root the kernel names mounts as they are called there.
        look = f"chroot {self.root} cat" if self.root else "cat"
        lines = [f"{look} /proc/self/mountinfo > {self.folder}/mounts.{node}"]
        return [
            *lines,
            f"echo $pid > {self.folder}/new.{node}",
            f"mv {self.folder}/new.{node} {self.folder}/{name}.{node}",
        ]

    def _own_identity(self, node: int) -> list[str]:
        """The processes, the name and the boot id of `node`: the kernel has one boot id for all."""
        boot_id = f"{self.folder}/boot_id.{node}"
        return [
            f"cat /proc/sys/kernel/random/uuid > {boot_id}",
            "mount -t proc proc /proc",
            *([f"mount -t proc proc {self.root}/proc"] if self.root else []),
            f"mount --bind {boot_id} {self.root}{_BOOT_ID}",
            f"hostname {self.name(node)}",
        ]

    def _own_places(self, node: int) -> list[str]:
        """The private folders of `node`, open to all users, and its local disk."""
        # Root's own shell files are none of a test's: pyenv's take 0.3 s of each ssh, and fail when four run at once.
        closed = [pwd.getpwuid(0).pw_dir] if node == _FRAME else []
        needed = _without_inner([self.folder, *_needed()])
        for path in needed if node == _FRAME else ():
            # A Python or a checkout in somebody's home: alice may use it, too.
            closed += [str(one) for one in closed_on_the_way(path)[:1]]
        lines = []
        if self.root and node == _FRAME:
            # /tmp is there as a whole.
            for path in needed:
                if not any(path.is_relative_to(one) for one in ("/tmp", *closed)):
                    lines += [f"mkdir -p {self.root}{path}", f"mount --rbind {path} {self.root}{path}"]
        for covered in dict.fromkeys(closed):
            lines += self._cover(covered, "0755", needed)
        if node == _FRAME:
            return lines
        for covered in self.private:
            lines += self._cover(covered, "1777", needed)
        return [*lines, f"mount --bind {self.disk(node)} {self.local}"]

    def _cover(self, covered: str, mode: str, needed: Sequence[Path]) -> list[str]:
        """Mount an empty folder over `covered`, in which only those of `needed` are that lie in it."""
        inside = [path for path in needed if path.is_relative_to(covered)]
        # A descriptor still leads to what a mount has covered, and it can be mounted anew from there. dash has those up
        # to 9.
        lines = [f"exec {number}<{path}" for number, path in enumerate(inside, start=3)]
        lines += [f"mount -t tmpfs -o mode={mode} tmpfs {self.root}{covered}"]
        for number, path in enumerate(inside, start=3):
            lines += [
                f"mkdir -p {self.root}{path}",
                f"mount --no-canonicalize --rbind /proc/self/fd/{number} {self.root}{path}",
                f"exec {number}<&-",
            ]
        return lines

    def _read_pid(self, name: str) -> int:
        path, deadline = self.folder / name, time.monotonic() + TIMEOUT_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                outputs = "\n".join(out.read_text() for out in sorted(self.folder.glob("out.*")))
                raise TimeoutError(f"{name} does not come: {outputs}")
            time.sleep(POLL_SECONDS)
        return int(path.read_text())

    def _kill(self, node: int) -> None:
        """End the first process of `node`, and with it all others there, and wait until they are gone."""
        try:
            descriptor = os.pidfd_open(self.pid(node))
        except (FileNotFoundError, ProcessLookupError):
            return
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            # It ends only after all of its PID namespace has.
            select.select([descriptor], [], [], TIMEOUT_SECONDS)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


def _die_with_parent() -> None:
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _needed() -> list[Path]:
    """What the users need of this machine's files: Python, the environment, and the sources."""
    return [ROOT, Path(sys.prefix), Path(sys.base_prefix)]


def _without_inner(paths: Sequence[Path]) -> list[Path]:
    """`paths`, but for those inside others of them."""
    outer = [path.resolve() for path in dict.fromkeys(paths)]
    return [path for path in outer if not any(path != other and path.is_relative_to(other) for other in outer)]


def _pid_in_first_namespace(pid: int) -> int:
    """The number of `pid` in the PID namespace just below this process's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[2])
    raise ProcessLookupError(pid)
