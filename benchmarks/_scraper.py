"""Reads metrics as Prometheus would, from a process of its own: `python -m benchmarks._scraper`.

A line on standard input says how often a second which addresses are to be read from now on (`RATE HOST:PORT ...`);
each line is answered by how many answers there were to the one before. It ends with standard input.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import sys
import time

ACCEPT = "application/openmetrics-text; version=1.0.0"
TIMEOUT_SECONDS = 2.0


def read_once(address: str) -> bool:
    """Read one address; returns whether it answered with metrics."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)) as connection:
        try:
            connection.request("GET", "/metrics", headers={"Accept": ACCEPT})
            answer = connection.getresponse()
            return bool(answer.read()) and answer.status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def main() -> None:
    """Until standard input ends."""
    rate, addresses, num_answers, turn, due = 0.0, list[str](), 0, 0, time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic()) if rate and addresses else None
        if select.select([sys.stdin], [], [], wait)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            print(num_answers, flush=True)
            first, *addresses = line.split()
            rate, num_answers, due = float(first), 0, time.monotonic()
            continue
        num_answers += read_once(addresses[turn % len(addresses)])
        turn += 1
        # Spread over the second, as Prometheus does.
        due += 1.0 / (rate * len(addresses))


if __name__ == "__main__":
    main()
