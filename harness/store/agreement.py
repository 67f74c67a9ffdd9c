"""Whether the log of a run begins as one, and agrees with itself and with the files that lie beside it.

Plain values in, reasons out (their sentences: `harness.store.doubt_reasons`): for the list of runs as for their
verdicts. What an older log does not tell is no contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chaos.language.identity import hash_of
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason

RUN_STARTED = "run_started"
# As `hash_of` has made it since the first version.
_HASH = re.compile(r"[0-9a-f]{16}")


def no_beginning(first: Event) -> Iterator[Reason]:
    """What is wrong with a log whose first event is `first`."""
    if first.kind != RUN_STARTED:
        yield Reason("no_beginning", first=first.kind)


def contradictions_of_start(said: Mapping[str, Any]) -> Iterator[Reason]:
    """What the fields of `run_started` say that cannot all be true."""
    experiment = said.get("experiment")
    if not isinstance(experiment, Mapping):
        return
    gates, own_gates = said.get("gates"), experiment.get("gates")
    if isinstance(gates, list | tuple) and isinstance(own_gates, list | tuple):
        asked, own = _expressions(gates), _expressions(own_gates)
        if asked != own:
            yield Reason("gates_contradict", gates=asked, of_experiment=own)
    seed, own_seed = said.get("seed"), experiment.get("seed")
    if seed is not None and own_seed is not None and seed != own_seed:
        yield Reason("seeds_contradict", seed=seed, of_experiment=own_seed)
    known = said.get("experiment_hash")
    if isinstance(known, str) and _HASH.fullmatch(known) and known != (own_hash := hash_of(experiment)):
        yield Reason("hashes_contradict", experiment_hash=known, of_experiment=own_hash)


def contradictions_of_files(
    said: Mapping[str, Any], experiment: Mapping[str, Any] | None, summary: Mapping[str, Any] | None
) -> Iterator[Reason]:
    """What the fields of `run_started` say otherwise than the files beside the log, which are None where missing."""
    own = said.get("experiment")
    if experiment is not None and isinstance(own, Mapping):
        stored, logged = _without_none(experiment), _without_none(own)
        if differing := sorted(key for key in {*stored, *logged} if stored.get(key) != logged.get(key)):
            yield Reason("experiment_file_differs", keys=differing)
    if summary is None:
        return
    for key in ("experiment_hash", "seed"):
        ours, theirs = said.get(key), summary.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            yield Reason("summary_of_another_run", key=key, of_summary=theirs, of_log=ours)
    gates, judged = said.get("gates"), summary.get("gates")
    if isinstance(gates, list | tuple) and isinstance(judged, list | tuple):
        # Those that are always checked may be others in another version.
        asked = list(dict.fromkeys(_expressions(gates)))
        known = [str(one.get("expression")) for one in judged if isinstance(one, Mapping) and not one.get("builtin")]
        if asked != known:
            yield Reason("summary_of_other_gates", of_summary=known, of_log=asked)


def wrong_number(num_lines: int, last: Event | None) -> Iterator[Reason]:
    """What is wrong with a log of `num_lines` whose `run_ended` is `last`; nobody knows without one."""
    told = None if last is None else last.fields.get("num_events")
    if isinstance(told, int) and told != num_lines:
        yield Reason("lines_missing" if num_lines < told else "lines_added", lines=num_lines, written=told)


def _expressions(gates: Sequence[Any]) -> list[str]:
    """The expressions of gates as a log has them: as text, or with what they are to do."""
    return [str(gate.get("gate")) if isinstance(gate, Mapping) else str(gate) for gate in gates]


def _without_none(value: Any) -> Any:
    """A file leaves out what is not set."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value
