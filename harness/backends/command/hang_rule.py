"""The user's own rule for a hang, held against the lines that the job prints (`job.hang_rule`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mecefo_runtime.job.command_settings import HangRule
from mecefo_runtime.system.command_records import HangRuleCleared, HangRuleFired


class HangRuleWatch:
    """Tells when a monitor with that rule would have fired: once in each silence, and again after the next match.

    Times are CLOCK_MONOTONIC seconds. A line counts from when it was read, at most a moment after it was written.
    """

    def __init__(self, rule: HangRule, began_seconds: float) -> None:
        """The first silence begins when the command is started."""
        self._rule = rule
        self._pattern = re.compile(rule.pattern)
        self._last_seconds = began_seconds
        self._has_fired = False
        self._has_matched = False

    def read(self, lines: list[str], now_seconds: float) -> Iterator[HangRuleFired | HangRuleCleared]:
        """These lines were read now."""
        if now_seconds - self._last_seconds >= self._rule.seconds and not self._has_fired:
            self._has_fired = True
            yield HangRuleFired(
                pattern=self._rule.pattern, rule_seconds=self._rule.seconds, silent_since_monotonic=self._last_seconds
            )
        if any(map(self._pattern.search, lines)):
            if self._has_fired or not self._has_matched:
                yield HangRuleCleared(pattern=self._rule.pattern)
            self._last_seconds, self._has_fired, self._has_matched = now_seconds, False, True
