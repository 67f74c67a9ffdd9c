"""Text for numbers, durations, ranks, targets and evidence."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from chaos.plain_text import blanked
from mecefo_runtime.system.run_records import PlannedIncident


def one_line(text: object) -> str:
    """`text` on one line and without control characters: what a fault or a job says must not steer a terminal."""
    return blanked(text).strip()


def num_layers(layout: Mapping[str, Any] | None, how: str) -> int:
    """Layers of the layout that an event tells that are `degraded` or `projected`, once per replica where they are."""
    replicas = (layout or {}).get("replicas", ())
    return sum(len(span.get(how, ())) for replica in replicas for span in replica.get("spans", ()))


def target_text(target: object) -> str:
    """A target in words: `node 2` for `node=2`, `the coordinator` for `role=coordinator`."""
    return one_line(target).replace("role=", "the ").replace("=", " ").replace(",", ", ")


def when(incident: PlannedIncident) -> str:
    """The trigger of a planned incident: `at step 500 (backward)`, or `after 10 s`."""
    if incident.follows is not None:
        return f"once incident {incident.follows} is verified"
    if incident.step is not None:
        phase = ", ".join(part for part in (incident.phase, incident.in_save) if part)
        return f"at step {incident.step}{f' ({phase})' if phase else ''}"
    if incident.at_seconds is None:
        return f"at the next {incident.phase or 'step'}"
    return f"after {incident.at_seconds} s"


def evidence_text(evidence: object) -> str:
    """Evidence of any shape as one readable line."""
    if evidence is None:
        return ""
    if isinstance(evidence, Mapping):
        for key in ("summary", "undone"):
            if isinstance(sentence := evidence.get(key), str):
                return sentence
        return ", ".join(f"{str(key).replace('_', ' ')}: {evidence_text(value)}" for key, value in evidence.items())
    if isinstance(evidence, list | tuple):
        return ", ".join(evidence_text(item) for item in evidence)
    if isinstance(evidence, bool):
        return "yes" if evidence else "no"
    return f"{evidence:.3g}" if isinstance(evidence, float) else str(evidence)


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 processes`."""
    if number == 1:
        return f"1 {noun}"
    head, _, tail = noun.partition(" ")
    plural = f"{head}{'es' if head.endswith('s') else 's'}"
    return f"{number} {plural}{' ' if tail else ''}{tail}"


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 4 and 5`, `ranks 0 to 15`."""
    return name_numbers("rank", ranks)


def name_nodes(nodes: Iterable[int]) -> str:
    """`node 2`, `nodes 1 and 2`."""
    return name_numbers("node", nodes)


def name_bytes(number: float) -> str:
    """A size with a binary unit: `1.5 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def name_seconds(seconds: float | None) -> str:
    """A readable duration: `35 ms`, `1.24 s`, `12.3 s`, `4 min 05 s`; `-` when unknown."""
    if seconds is None:
        return "-"
    if abs(seconds) < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 119.95:
        return f"{seconds:.2f} s" if abs(seconds) < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(abs(seconds)), 60)
    return f"{'-' if seconds < 0 else ''}{minutes} min {rest:02d} s"


def name_uncertain(seconds: float | None, uncertainty_seconds: float | None) -> str:
    """A duration with its uncertainty, if that is not zero: `1.24 s ± 0.04 ms`."""
    text = name_seconds(seconds)
    if seconds is None or not uncertainty_seconds:
        return text
    small = f"{uncertainty_seconds * 1000:.2g} ms"
    return f"{text} ± {small if uncertainty_seconds < 0.0995 else name_seconds(uncertainty_seconds)}"


def speed_text(speed: float) -> str:
    """A speed with the significant digits: `40,960`, `12.3`, `0.534`."""
    return f"{speed:,.0f}" if speed >= 100 or speed == 0 else f"{speed:.3g}"


def exit_text(code: object) -> str:
    """An exit code in words: `exit code 1`, `killed by SIGKILL`."""
    if isinstance(code, int) and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """`NOUN 3`, `NOUNs 4 and 5`, `NOUNs 0 to 15`."""
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return f"{noun} {ordered[0]}" if ordered else ""
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{noun}s {ordered[0]} to {ordered[-1]}"
    return f"{noun}s {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"
