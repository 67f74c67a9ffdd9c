"""A page for each kind of fault, from its class: what it does, its parameters, an example, a picture of a real run."""

from __future__ import annotations

import datetime
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

from chaos.faults import registry
from manual.examples import EXAMPLES, Example
from manual.pictures import PICTURES
from mecefo_chaos.cli.faults import default_text, describe

_FIDELITY = {
    "real": "**real**: it is the thing itself",
    "shaped": "**shaped**: what the job sees is real, what causes it is not",
    "telemetry": "**telemetry**: monitoring sees it, nothing else does",
}
_NEEDS = {
    "cuda": "ranks that compute on GPUs",
    "links": "ranks with networks of their own",
    "own-runtime": "a job of our runtime",
    "checkpoints": "a job that writes checkpoints (`--checkpoint-every`)",
    "checkpoint-phase": "a job that writes checkpoints (`--checkpoint-every`), or a command that saves its own",
    "lookups": "a command whose Python code looks names up",
    "root": "root",
    "snapshots": "a job that keeps snapshots (`--snapshot-every`)",
}
_FAMILIES = {
    "Processes": ("kill", "data_worker", "drain", "preempt", "pause", "crash", "hang", "memory"),
    "Stragglers": ("slow", "straggler"),
    "Tensors": ("tensor",),
    "GPUs": ("cuda", "telemetry"),
    "Checkpoints, snapshots and disks": ("checkpoint", "snapshot", "disk", "shm"),
    "Names": ("name",),
    "Links": ("link", "flap", "isolate", "partition"),
}
_SVG = "{http://www.w3.org/2000/svg}"


def families() -> dict[str, list[str]]:
    """Family -> kinds, each in the order of the alphabet; what others' packages bring has its pages there."""
    family_of = {module: family for family, modules in _FAMILIES.items() for module in modules}
    found: dict[str, list[str]] = {family: [] for family in _FAMILIES}
    for kind, fault in registry().items():
        if fault.__module__.startswith("chaos.faults."):
            found[family_of[fault.__module__.rpartition(".")[2]]].append(kind)
    return found


def kinds() -> list[str]:
    """The kinds that have a page, in the order of the alphabet."""
    return sorted(kind for kinds in families().values() for kind in kinds)


def index() -> str:
    """The page of all kinds, a line each."""
    parts = ["# Each fault\n\nEvery kind of fault, with its parameters, an example and a picture of a real run.\n"]
    for family, members in families().items():
        parts += [f"## {family}\n", "| fault | what it does | how real |", "| --- | --- | --- |"]
        for kind in members:
            about = describe(registry()[kind])
            parts.append(f"| [{kind}]({kind}.md) | {_cell(about['summary'])} | {about['fidelity']} |")
        parts.append("")
    return "\n".join(parts)


def page(kind: str, overview: str) -> str:
    """The page of `kind`; `overview` is the text of docs/reference/faults.md, to which it leads."""
    about = describe(registry()[kind])
    needs = " and ".join(_NEEDS.get(need, need) for need in about["needs"]) or "nothing"
    lifetime = about["lifetime"]
    lasts = "over at once" if lifetime is None else f"{_lifetime(lifetime)}, unless `for` says otherwise"
    heading = section_about(kind, overview)
    parts = [
        f"# {kind}\n\n{_code(about['summary'])}\n",
        "| | |\n| --- | --- |",
        f"| how real | {_FIDELITY[about['fidelity']]} |",
        f"| acts on | {_SCOPES.get(about['scope'], about['scope'])} |",
        f"| needs | {needs} |",
        f"| lasts | {lasts} |",
        f"| undone | {_code(about['undo'])} |",
        f"\nHow its effect is seen, and what else there is to know: [{heading}](../faults.md#{_anchor(heading)}).\n",
        *_example(EXAMPLES.get(kind), kind),
        *_parameters(about["parameters"]),
    ]
    return "\n".join(parts)


_SCOPES = {
    "rank": "ranks",
    "node": "nodes",
    "link": "the link between two ranks",
    "job": "the whole job: it has no `on`",
    "all-ranks": "every rank: it has no `on`",
    "checkpoint": "the job's newest checkpoint, or its folder: it has no `on`",
}


def section_about(kind: str, overview: str) -> str:
    """The heading in `overview` under which `kind` is told: one that names it, else the one whose text does first."""
    headings = re.findall(r"^#{2,3} (.+)$", overview, re.MULTILINE)
    for heading in headings:
        if kind in re.split(r"[, ]+", heading):
            return str(heading)
    sections = re.split(r"^#{2,3} (.+)$", overview, flags=re.MULTILINE)
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if re.search(rf"(?<![\w-]){re.escape(kind)}(?![\w-])", text):
            return heading
    raise ValueError(f"docs/reference/faults.md does not tell of {kind}")


def _example(example: Example | None, kind: str) -> list[str]:
    if example is None:
        return []
    parts = ["## Example\n"]
    if example.file is not None:
        name = example.name or example.arguments
        parts.append(f'```{"python" if name.endswith(".py") else "yaml"} title="{name}"\n{example.file}```\n')
    # The options of the small job on a line of their own: no line is too long for the page.
    command = example.command.replace(" --nodes ", " \\\n    --nodes ")
    parts += [f"```sh\n{command}\n```\n", _picture(kind)]
    return parts


def _picture(kind: str) -> str:
    path = PICTURES / f"{kind}.svg"
    if not path.exists():
        return "There is no picture of it yet: no machine that had what it needs has run it.\n"
    text = path.read_text().strip()
    desc = ElementTree.fromstring(text).findtext(f"{_SVG}desc") or ""
    _, *lines, last = desc.splitlines()
    when, _, machine = last.partition(", ")
    day = datetime.datetime.fromtimestamp(float(when), datetime.UTC).date()
    words = " ".join(map(_html, lines))
    return (
        f'<figure class="run" markdown="0">{text}<figcaption>What this very command did. {words} '
        f"({day}, {_html(machine)})</figcaption></figure>\n"
    )


def _parameters(parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not parameters:
        return ["## Parameters\n\nNone of its own."]
    rows = ["## Parameters\n", "`-p NAME=VALUE` on the command line; in a file they stand beside `kind`.\n"]
    rows += ["| parameter | meaning | what it may be | default |", "| --- | --- | --- | --- |"]
    for name, about in parameters.items():
        default = "" if about["default"] is None else f"`{default_text(about['default'])}`"
        default = "needed" if about["required"] else default
        rows.append(f"| `{name}` | {_cell(about['description'])} | {_cell(about['accepts'])} | {_cell(default)} |")
    return rows


def _anchor(heading: str) -> str:
    """As Python-Markdown makes it of a heading; a wrong one fails the build."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _lifetime(text: str) -> str:
    return re.sub(r"^1steps$", "one step", text)


def _code(text: str) -> str:
    """A sentence with the options in it set as code."""
    return re.sub(r"(?<!`)(--[a-z-]+)", r"`\1`", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
