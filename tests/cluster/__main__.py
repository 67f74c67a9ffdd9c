"""A cluster by hand, or for a program that is none of the tests: `python -m tests.cluster VERB FOLDER ...`, as root.

One that was started lives until it is stopped. FOLDER and all above it must be open to all users.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click

from tests.cluster import slurm, ssh
from tests.cluster.folders import cluster_folder
from tests.cluster.hosts import Hosts, why_no_hosts
from tests.cluster.slurm import Slurm
from tests.cluster.ssh import Ssh

KINDS: dict[str, type[Hosts]] = {"hosts": Hosts, "slurm": Slurm, "ssh": Ssh}
# The programs of each kind, and the packages that have them.
REQUIRED = {
    "hosts": ((), ""),
    "slurm": (slurm.PROGRAMS, slurm.PACKAGES),
    "ssh": (ssh.PROGRAMS, ssh.PACKAGES),
}
_KIND = "kind"
folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))


@click.group(help=__doc__)
def main() -> None:
    """Entry point."""


def _cluster(folder: Path) -> Hosts:
    return KINDS[(folder / _KIND).read_text()].of(folder)


@main.command()
@click.argument("kind", type=click.Choice([*KINDS]))
@folder_argument
@click.option("--num", default=4, help="Hosts beside the head.")
@click.option("--clock", multiple=True, metavar="NODE=SECONDS", help="A host whose clock is ahead.")
def start(kind: str, folder: Path, num: int, clock: tuple[str, ...]) -> None:
    """Start a cluster of this kind with its files in FOLDER."""
    offsets = {int(node): int(seconds) for node, seconds in (one.split("=") for one in clock)}
    cluster = KINDS[kind](folder, num, clock=offsets, outlive=True)
    cluster.start()
    (folder / _KIND).write_text(kind)


@main.command()
@click.argument("kind", type=click.Choice([*KINDS]))
@click.option("--num", default=4, help="Hosts beside the head.")
def hold(kind: str, num: int) -> None:
    """Start a cluster, print what it is as one line of JSON, and end it when standard input ends, or this process."""
    programs, packages = REQUIRED[kind]
    if (reason := why_no_hosts(programs, packages)) is not None:
        raise click.ClickException(reason)
    with cluster_folder() as base, KINDS[kind](base / kind, num) as cluster:
        (cluster.folder / _KIND).write_text(kind)
        told = {"folder": str(cluster.folder), "names": cluster.names, "home": str(cluster.home())}
        click.echo(json.dumps(told))
        sys.stdin.read()


@main.command(context_settings={"ignore_unknown_options": True})
@folder_argument
@click.argument("node", type=int)
@click.option("--user", help="Default: root.")
@click.argument("words", nargs=-1, required=True)
def run(folder: Path, node: int, user: str | None, words: tuple[str, ...]) -> None:
    """Become WORDS on host NODE (0: the head)."""
    command = _cluster(folder).command(node, *words, user=user)
    os.execvp(command[0], command)


@main.command()
@folder_argument
@click.argument("act", type=click.Choice(["crash", "boot", "cut", "heal"]))
@click.argument("node", type=int)
def act(folder: Path, act: str, node: int) -> None:
    """Cut the power of host NODE, boot it, take it off the network, or take it back."""
    getattr(_cluster(folder), act)(node)


@main.command()
@folder_argument
def leftovers(folder: Path) -> None:
    """What is on the hosts and would not be there without runs."""
    click.echo("\n".join(_cluster(folder).all_leftovers()) or "nothing")


@main.command()
@folder_argument
def stop(folder: Path) -> None:
    """End all hosts and remove FOLDER."""
    _cluster(folder).stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
