"""The pictures of the faults: `python -m manual.pictures [KIND...]` runs the examples and draws what happened.

They are checked in (`docs/pictures/KIND.svg`), since a run takes its time and some need what not every machine has.
Each carries the command, the day, the machine and the verdict of the run that it shows.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.faults import registry
from harness.judging.summary import Summary, read_summary
from harness.store.log import read_events
from manual.examples import EXAMPLES
from manual.timeline import Curve, draw
from mecefo_runtime.system.events import Event

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
# What a wrong number does shows in the loss; all else in the speed.
_SHOWN_BY_LOSS = ("chaos.faults.device.tensor",)
# The run, not its verdict, decides whether there is a picture: a job that fails of its fault is one, too.
_WITH_A_RUN = (0, 1, 5)


def take(kind: str, folder: Path) -> str:
    """Run the example of `kind` below `folder`; returns its picture.

    Raises:
        RuntimeError: there was no run: its command was refused, or ended in an error.
    """
    example = EXAMPLES[kind]
    if example.file is not None:
        (folder / (example.name or example.arguments)).write_text(example.file)
    arguments = ["--out", "runs", "--json", *shlex.split(example.arguments)]
    command = [sys.executable, "-m", "mecefo_chaos", "run", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in _WITH_A_RUN:
        raise RuntimeError(f"{example.command} ended with {done.returncode}:\n{done.stderr}")
    (log,) = folder.glob("runs/*/2*/events.jsonl")
    return picture(kind, read_events(log)[0], read_summary(json.loads(done.stdout)), log.parent.resolve())


def picture(kind: str, events: Sequence[Event], summary: Summary, folder: Path) -> str:
    """The picture of a run of the example of `kind`, which is kept in `folder`."""
    (started,) = (event for event in events if event.kind == "run_started")
    # Where the run was kept is nobody's business.
    caption = _caption(kind, started, summary).replace(f"{folder}/", "")
    return draw(events, f"{kind}, as it happened", caption, curve=_curve(kind))


def _curve(kind: str) -> Curve:
    return "loss" if registry()[kind].__module__ in _SHOWN_BY_LOSS else "speed"


def _caption(kind: str, started: Event, summary: Summary) -> str:
    """What was run, where, and what came of it; its first line is the command."""
    incident = summary.incidents[0]
    seen = (incident.evidence or {}).get("summary") or incident.unverified_reason or "not verified"
    machine = started.fields["machine"]
    return "\n".join(
        [
            EXAMPLES[kind].command,
            f"Verified: {seen}.",
            f"Verdict: {summary.verdict} ({'; '.join(summary.reasons)}).",
            f"{started.time_seconds:.0f}, {machine['cores']} cores, Python {machine['python']}",
        ]
    )


def main(kinds: Sequence[str]) -> int:
    """Take the pictures of `kinds`; none: of all that have an example. Returns how many could not be taken."""
    failures = 0
    for kind in kinds or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                (PICTURES / f"{kind}.svg").write_text(take(kind, Path(folder)))
                print(kind)
            except RuntimeError as error:
                failures += 1
                print(f"{kind}: no picture: {error}", file=sys.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
