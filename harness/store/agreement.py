"""Whether the log of a run begins as one, and agrees with itself and with the files that lie beside it.

Plain values in, sentences out: for the list of runs as for their verdicts. What an older log does not tell is no
contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chaos.language.identity import hash_of
from mecefo_runtime.system.events import Event

RUN_STARTED = "run_started"
# As `hash_of` has made it since the first version.
_HASH = re.compile(r"[0-9a-f]{16}")


def no_beginning(first: Event) -> Iterator[str]:
    """What is wrong with a log whose first event is `first`."""
    if first.kind != RUN_STARTED:
        yield f"the log does not begin with {RUN_STARTED} but with {first.kind}: its lines are not in their order"


def contradictions_of_start(said: Mapping[str, Any]) -> Iterator[str]:
    """What the fields of `run_started` say that cannot all be true."""
    experiment = said.get("experiment")
    if not isinstance(experiment, Mapping):
        return
    gates, own_gates = said.get("gates"), experiment.get("gates")
    if isinstance(gates, list | tuple) and isinstance(own_gates, list | tuple):
        asked, own = _expressions(gates), _expressions(own_gates)
        if asked != own:
            yield (
                f"the log contradicts itself: {RUN_STARTED} names the gates {_named(asked)}, and its experiment "
                f"{_named(own)}"
            )
    seed, own_seed = said.get("seed"), experiment.get("seed")
    if seed is not None and own_seed is not None and seed != own_seed:
        yield f"the log contradicts itself: {RUN_STARTED} names the seed {seed}, its experiment {own_seed}"
    known = said.get("experiment_hash")
    if isinstance(known, str) and _HASH.fullmatch(known) and known != (own_hash := hash_of(experiment)):
        yield f"the log contradicts itself: the experiment hash is {known}, and that of its experiment {own_hash}"


def contradictions_of_files(
    said: Mapping[str, Any], experiment: Mapping[str, Any] | None, summary: Mapping[str, Any] | None
) -> Iterator[str]:
    """What the fields of `run_started` say otherwise than the files beside the log, which are None where missing."""
    own = said.get("experiment")
    if experiment is not None and isinstance(own, Mapping):
        stored, logged = _without_none(experiment), _without_none(own)
        if differing := sorted(key for key in {*stored, *logged} if stored.get(key) != logged.get(key)):
            yield (
                "experiment.yaml beside the log is another experiment than the log's: they differ in "
                f"{', '.join(differing)}"
            )
    if summary is None:
        return
    for key, noun in (("experiment_hash", "experiment hash"), ("seed", "seed")):
        ours, theirs = said.get(key), summary.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            yield f"the stored summary is of another run: its {noun} is {theirs}, the log's {ours}"
    gates, judged = said.get("gates"), summary.get("gates")
    if isinstance(gates, list | tuple) and isinstance(judged, list | tuple):
        # Those that are always checked may be others in another version.
        asked = list(dict.fromkeys(_expressions(gates)))
        known = [str(one.get("expression")) for one in judged if isinstance(one, Mapping) and not one.get("builtin")]
        if asked != known:
            yield f"the stored summary was judged by the gates {_named(known)}, and the log names {_named(asked)}"


def wrong_number(num_lines: int, last: Event | None) -> Iterator[str]:
    """What is wrong with a log of `num_lines` whose `run_ended` is `last`; nobody knows without one."""
    told = None if last is None else last.fields.get("num_events")
    if isinstance(told, int) and told != num_lines:
        yield (
            f"the log holds {num_lines} of the {told} lines that the run wrote: its other lines are missing"
            if num_lines < told
            else f"the log holds {num_lines} lines, and the run wrote {told}: the others are not its own"
        )


def _expressions(gates: Sequence[Any]) -> list[str]:
    """The expressions of gates as a log has them: as text, or with what they are to do."""
    return [str(gate.get("gate")) if isinstance(gate, Mapping) else str(gate) for gate in gates]


def _named(gates: Sequence[str]) -> str:
    return ", ".join(f"'{gate}'" for gate in gates) or "none"


def _without_none(value: Any) -> Any:
    """A file leaves out what is not set."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value
