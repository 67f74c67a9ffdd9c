"""What the command line of a launcher tells of the job: how many nodes and ranks it starts, and which script.

torchrun, accelerate, deepspeed, mpirun and srun are understood, also where a shell script or `sh -c` starts them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
ACCELERATE = ("accelerate", "accelerate.commands.launch")
_SHELLS = ("sh", "bash", "dash", "zsh")
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z_-]*)(?:=(.*))?", re.DOTALL)
_SHORT_NUMBER = re.compile(r"-([nN])(\d+)")
# The launcher's own options end with the script.
SCRIPT = re.compile(r".*\.py")
PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# Of a shell script: more is no script that somebody wrote.
_MAX_SCRIPT_BYTES = 65536


@dataclass(frozen=True, slots=True)
class _Options:
    """By which options, the first that is given counts: those of all nodes, of each node, and of all together."""

    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    total: tuple[str, ...] = ()


# In the order in which they are believed: what another one starts knows better.
_LAUNCHERS: Mapping[tuple[str, ...], _Options] = {
    TORCHRUN: _Options(("nnodes",), ("nproc-per-node",)),
    ACCELERATE: _Options(("num-machines",), (), ("num-processes",)),
    ("deepspeed", "deepspeed.launcher.runner"): _Options(("num-nodes",), ("num-gpus",)),
    ("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun"): _Options(
        (), ("npernode", "ppn", "ntasks-per-node"), ("np", "n", "num-proc")
    ),
    ("srun",): _Options(("N", "nodes"), ("ntasks-per-node",), ("n", "ntasks")),
}


def ranks_of_command(
    command: Sequence[str], folder: Path | None = None, num_nodes: int | None = None
) -> tuple[int | None, int | None]:
    """(nodes, ranks on each) as the options of the command's launcher tell them; None: they do not.

    `folder` is where the command runs: a shell script that starts the launcher is looked for there. `num_nodes` are
    those that there are, where the options tell the number of all ranks alone.
    """
    lines = [list(command), *_lines_of_shell(command, folder or Path())]
    for names, options in _LAUNCHERS.items():
        for line in lines:
            at = next((index for index, word in enumerate(line) if Path(word).name in names), None)
            if at is not None and line[at + 1 : at + 2] != ["config"]:
                return _counts(_options_of(line[at + 1 :]), options, num_nodes)
    return None, None


def launcher_of_command(command: Sequence[str], folder: Path | None = None) -> str | None:
    """The name of the launcher that the command starts, `python` where that runs a script itself; None: not known.

    Of several launchers it is the one that starts the ranks; see `ranks_of_command`.
    """
    lines = [list(command), *_lines_of_shell(command, folder or Path())]
    for names in _LAUNCHERS:
        if any(Path(word).name in names for line in lines for word in line):
            return names[0]
    is_python = bool(command) and PYTHON.fullmatch(Path(command[0]).name) is not None
    return "python" if is_python else None


def _counts(given: Mapping[str, str], options: _Options, num_nodes: int | None) -> tuple[int | None, int | None]:
    def first(names: tuple[str, ...]) -> int | None:
        return next((number for name in names if (number := _number(given.get(name))) is not None), None)

    nodes, per_node, total = first(options.nodes), first(options.per_node), first(options.total)
    if per_node is None and total is not None:
        per_node = max(1, total // (nodes or num_nodes or 1))
    elif nodes is None and per_node is not None and total is not None:
        nodes = max(1, total // per_node)
    return nodes, per_node


def _options_of(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if word in ("-m", "--module") or SCRIPT.fullmatch(word) or PYTHON.fullmatch(Path(word).name):
            break
        if match := _SHORT_NUMBER.fullmatch(word):
            found.setdefault(match[1], match[2])
        elif match := _OPTION.fullmatch(word):
            following = words[index + 1] if index + 1 < len(words) else ""
            name = match[1].replace("_", "-")
            found.setdefault(name, following if match[2] is None else match[2])
    return found


def _number(text: str | None) -> int | None:
    if text in ("auto", "gpu", "cpu"):
        num_gpus = _num_gpus()
        if text == "gpu" and not num_gpus:
            return None
        return num_gpus if num_gpus and text != "cpu" else os.cpu_count()
    return int(text) if text is not None and re.fullmatch(r"[1-9][0-9]{0,3}", text) else None


def _num_gpus() -> int:
    """Without torch, which takes seconds to import: NVIDIA's, those that CUDA is to see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())


def _lines_of_shell(command: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """The commands in the text that a shell is given, or in the script that it is to run, those that can be read."""
    words = list(command)
    name = Path(words[0]).name if words else ""
    if name in _SHELLS and "-c" in words[1:-1]:
        text = words[words.index("-c") + 1]
    else:
        scripts = [word for word in words[: 2 + (name in _SHELLS)] if word.endswith((".sh", ".bash", ".slurm"))]
        if not scripts:
            return
        try:
            # A FIFO would wait for whoever writes into it.
            path = folder / scripts[0]
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        except OSError:
            return
    for line in text[:_MAX_SCRIPT_BYTES].replace("\\\n", " ").replace(";", "\n").replace("&&", "\n").splitlines():
        try:
            yield shlex.split(line, comments=True)
        except ValueError:
            continue


def script_of_command(command: Sequence[str]) -> str | None:
    """The script that python, torchrun or accelerate is told to start; None: a module, or it cannot be told."""
    words = list(command)
    while words:
        program = Path(words.pop(0)).name
        is_python = PYTHON.fullmatch(program) is not None
        if not is_python and program not in (*TORCHRUN, *ACCELERATE):
            return None
        if program == "accelerate" and words[:1] == ["launch"]:
            words.pop(0)
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-m", "--module") and is_python:
                break
            if option in ("-c", "-m", "--module", "--no-python", "--no_python", "-"):
                return None
            if is_python and option in _PYTHON_OPTIONS_WITH_VALUE:
                del words[:1]
        else:
            if is_python:
                return words[0] if words else None
            # Options of launchers have values, or none: the script is what ends like one.
            following = iter(words)
            for word in following:
                if word in ("-m", "--module", "--no-python", "--no_python"):
                    return None
                if SCRIPT.fullmatch(word) and not word.startswith("-"):
                    return word
            return None
        # A module that is started: a launcher is one, too.
    return None
