"""N hosts that are reached by ssh: an sshd on each namespace host, and keys and a configuration for each user.

with cluster_folder() as folder, Ssh(folder, 4) as ssh:
    ssh.run(0, "ssh", ssh.name(2), "hostname", user="alice")    # from the head; from any other host likewise
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.cluster.hosts import POLL_SECONDS, TIMEOUT_SECONDS, USERS, Hosts

PROGRAMS = ("ssh", "ssh-keygen", "/usr/sbin/sshd")
PACKAGES = "openssh-server openssh-client"

_SERVER = """\
HostKey {d}/host_key
AuthorizedKeysFile {d}/authorized_keys.%u
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
MaxStartups 100
PidFile {d}/sshd.{node}.pid
Subsystem sftp internal-sftp
"""
_CLIENT = """\
Host {prefix}*
    IdentityFile {home}/.ssh/key
    IdentitiesOnly yes
    UserKnownHostsFile {d}/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 5
    LogLevel ERROR
"""


class Ssh(Hosts):
    """`num` hosts with an sshd each, from entering to leaving."""

    def __init__(self, folder: Path | str, num: int = 4, *, greeting: str = "", **options: Any) -> None:
        """Nothing is started yet; `options` are those of `Hosts`.

        `greeting`: what a user's .bashrc prints. It is run for every `ssh HOST COMMAND`, before the command.
        """
        super().__init__(folder, num, **options)
        self._greeting = greeting

    def start(self) -> Self:
        """Start the hosts and their sshd."""
        super().start()
        folder = self.folder
        self._make_key(folder / "host_key")
        key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        self._write("known_hosts", "".join(f"{self.name(i)},{self.address(i)} {key}\n" for i in self.nodes))
        for user in USERS:
            self._set_up(user)
        for node in self.nodes:
            self.start_sshd(node)
        return self

    def boot(self, node: int) -> None:
        """As of `Hosts`, and its sshd."""
        super().boot(node)
        self.start_sshd(node)

    def start_sshd(self, node: int) -> None:
        """Start the sshd of `node`, and wait until it listens."""
        pid_file = self.folder / f"sshd.{node}.pid"
        pid_file.unlink(missing_ok=True)
        self._write(f"sshd_config.{node}", _SERVER.format(d=self.folder, node=node))
        # It starts itself anew for each connection, and so wants its whole path; and this folder: /run is the host's.
        start = f"exec /usr/sbin/sshd -f {self.folder}/sshd_config.{node} -E {self.folder}/sshd.{node}.log"
        self.run(node, "sh", "-ec", f"mkdir -p /run/sshd; {start}")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not pid_file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / f"sshd.{node}.log").read_text())
            time.sleep(POLL_SECONDS)

    def _set_up(self, user: str) -> None:
        """The key and the configuration of `user`, where ssh looks for them."""
        home = self.home(user)
        own = home / ".ssh"
        own.mkdir(mode=0o700)
        self._make_key(own / "key")
        (own / "config").write_text(_CLIENT.format(d=self.folder, home=home, prefix=self.prefix))
        shutil.copy(own / "key.pub", self.folder / f"authorized_keys.{user}")
        (home / ".bashrc").write_text(f"echo {self._greeting}\n" if self._greeting else "")
        for path in (own, *own.iterdir(), home / ".bashrc"):
            os.chown(path, USERS[user], USERS[user])

    def _make_key(self, path: Path) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
