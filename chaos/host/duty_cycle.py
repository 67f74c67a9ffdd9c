"""A process that stops others for a share of the time: SIGSTOP and SIGCONT in turn, until its standard input ends.

    python -m chaos.host.duty_cycle FACTOR PERIOD_SECONDS JITTER SEED PID:START_TICKS...

Its standard input is a pipe from the injector, so that it ends with it, however the injector ends; SIGCONT is the last
thing that it does. Its output begins when it has begun; one line says when it ended (CLOCK_MONOTONIC
seconds).
"""

from __future__ import annotations

import random
import select
import signal
import sys
import time
from collections.abc import Sequence

from chaos.host.process_table import STOPPED
from chaos.host.python_module import begin_output
from mecefo_runtime.system.process import ProcessId

_LOOK_SECONDS = 0.0003


class DutyCycle:
    """Runs of `period_seconds / factor`, and stops between them, so that `factor` seconds pass for one of running.

    Each stop is longer or shorter by up to `jitter` of itself, from `seed`. A run or a stop that the scheduler
    stretched is made up for in the next stop: what counts is the share over many periods.
    """

    def __init__(
        self, processes: Sequence[ProcessId], factor: float, period_seconds: float, jitter: float, seed: int
    ) -> None:
        self._processes = processes
        self._stop_per_run = factor - 1.0
        self._run_seconds = period_seconds / factor
        self._longest_stop_seconds = 4 * period_seconds
        self._jitter = jitter
        self._lots = random.Random(seed)
        # How long they must still stand still for what they have run.
        self._owed_seconds = 0.0

    def cycle(self) -> bool:
        """One run and one stop; False when it is to end."""
        began = time.monotonic()
        is_over = _is_over(self._run_seconds)
        self._signal(signal.SIGSTOP)
        # A busy machine lets a thread wait for its turn to stop. Not for ever: another may have resumed it already.
        sent = stopped = time.monotonic()
        while not is_over and not self._all_stopped() and stopped - sent < self._longest_stop_seconds:
            is_over = _is_over(_LOOK_SECONDS)
            stopped = time.monotonic()
        self._owed_seconds += (stopped - began) * self._stop_per_run
        share = 1.0 + self._jitter * self._lots.uniform(-1.0, 1.0)
        # Never for long at a time, whatever is owed after the scheduler has kept this process waiting.
        stop_seconds = min(max(0.0, self._owed_seconds * share), self._longest_stop_seconds)
        is_over = is_over or _is_over(stop_seconds)
        self._signal(signal.SIGCONT)
        self._owed_seconds -= time.monotonic() - stopped
        return not is_over and any(process.is_running() for process in self._processes)

    def _all_stopped(self) -> bool:
        return all(process.state() in (STOPPED, "gone", "Z", "X") for process in self._processes)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.signal(number)


def _is_over(timeout_seconds: float) -> bool:
    """Wait so long, or until standard input ends."""
    readable, _, _ = select.select([sys.stdin], [], [], timeout_seconds)
    return bool(readable)


def main(arguments: Sequence[str]) -> None:
    """Cycle until told to end."""
    factor, period_seconds, jitter = (float(argument) for argument in arguments[:3])
    processes = [ProcessId(int(pid), int(ticks)) for pid, ticks in (whom.split(":") for whom in arguments[4:])]
    # Whoever interrupts the injector interrupts its children; the injector ends this one in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    duty = DutyCycle(processes, factor, period_seconds, jitter, int(arguments[3]))
    begin_output()
    try:
        while duty.cycle():
            pass
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)
        # When it ended, for whom it may take a while to notice.
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
