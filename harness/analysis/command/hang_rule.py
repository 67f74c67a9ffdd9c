"""The user's own rule for a hang: when it fired for a fault, and its false alarms before any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from chaos.errors import UsageError
from chaos.language.trigger import Duration
from harness.analysis.incident import MeasuredIncident
from mecefo_runtime.system.command_records import HangRuleCleared, HangRuleFired
from mecefo_runtime.system.record import Record


@dataclass(frozen=True, slots=True)
class HangRuleFigures:
    """`pattern` and `seconds` are the rule, `false_alarms` how often it fired before the first fault was injected.

    None: no line ever matched it, so that its silence says nothing.
    """

    pattern: str
    seconds: float | None
    false_alarms: int | None


def read_hang_rule(
    rule: object, main: Sequence[Record], incidents: Sequence[MeasuredIncident]
) -> HangRuleFigures | None:
    """`rule` is the job's setting as the log has it; None: it had none, or an unreadable one."""
    if not isinstance(rule, Mapping) or not isinstance(rule.get("pattern"), str):
        return None
    try:
        seconds = Duration.parse(rule.get("seconds"), in_steps=False).seconds
    except UsageError:
        seconds = None
    first = min((one.injected for one in incidents if one.injected is not None), default=inf)
    has_matched = any(isinstance(one, HangRuleCleared) for one in main)
    alarms = sum(isinstance(one, HangRuleFired) and one.monotonic_seconds < first for one in main)
    return HangRuleFigures(rule["pattern"], seconds, alarms if has_matched else None)


def fired_seconds(main: Sequence[Record], incidents: Sequence[MeasuredIncident]) -> Mapping[int, float]:
    """By incident: how long after the fault it fired, before the next fault and before the job made new progress."""
    if not any(isinstance(one, HangRuleCleared) for one in main):
        return {}
    fired = [one for one in main if isinstance(one, HangRuleFired)]
    injected = [one for one in incidents if one.injected is not None]
    by_incident: dict[int, float] = {}
    for one in injected:
        begun = one.injected or 0.0
        later = [other.injected for other in injected if other.injected is not None and other.injected > begun]
        until = min([inf if one.progressed is None else one.progressed, *later])
        at = next((alarm.monotonic_seconds for alarm in fired if begun <= alarm.monotonic_seconds <= until), None)
        if at is not None:
            by_incident[one.incident] = at - begun
    return by_incident
