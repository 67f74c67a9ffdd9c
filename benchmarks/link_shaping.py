"""How well is a link slowed, and by what? `python -m benchmarks.link_shaping [--json] [--quick]`.

The NFQUEUE shaper at the receiver and the kernel's tbf at the sender, in turns on the same link of networks of our own:
how late a round trip is under a delay (tbf has none), how much a TCP connection carries under a rate, how long a packet
waits behind a connection that fills that rate, and what the shaper costs. netem is tried, and its absence said.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil

from benchmarks._machine import confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish, progress
from benchmarks._spread import Spread, spread, table
from chaos.host.links import remove_rules
from chaos.host.links.firewall import TIMEOUT_SECONDS, enter
from harness.network.links import NamespaceLinks
from harness.network.machine import why_no_networks
from harness.network.namespaces import INTERFACE
from harness.network.plan import HeldNetworks, Networks
from mecefo_runtime.system.process import ProcessId

NUM_CORES = 2
NUM_ROUNDS, QUICK_NUM_ROUNDS = 3, 1
NUM_PROBES, QUICK_NUM_PROBES = 50, 10
# Few enough to be back before the rate is no longer filled.
NUM_WAITS = 3
LINK = (0, 1)
DELAYS_SECONDS = (0.005, 0.05, 0.2)
RATES_BITS = (5e6, 20e6, 100e6, 500e6)
# So long at the rate, and so many bytes at most.
RATE_SECONDS, QUICK_RATE_SECONDS, MAX_BYTES = 2.0, 0.5, 64_000_000
TIMEOUT = 30.0
NONE, SHAPER, TBF = "nothing", "our shaper", "tbf"
BURST = "32kbit"
LATENCY = "400ms"
MAX_DELAY_ERROR_SECONDS = 0.001
MAX_RATE_ERROR_RATIO = 0.1


@dataclass(slots=True)
class Figures:
    """What was measured, by condition: (what, by what, how much) -> values."""

    values: dict[tuple[str, str, float], list[float]] = field(default_factory=dict)

    def add(self, what: str, by: str, setting: float, *values: float) -> None:
        """Note `values`."""
        self.values.setdefault((what, by, setting), []).extend(values)

    def spread(self, what: str, by: str, setting: float) -> Spread:
        """All that was noted."""
        return spread(self.values.get((what, by, setting), ()))


def verdicts(figures: Figures) -> dict[str, bool]:
    """Whether the shaper keeps what is asked of it: a delay within a millisecond, a rate of 20 Mbit/s within 10%."""
    delay = figures.spread("delay error", SHAPER, 0.05)
    rate = figures.spread("rate", SHAPER, 20e6)
    return {
        "delay": delay.num_values > 0 and abs(delay.median) <= MAX_DELAY_ERROR_SECONDS,
        "rate": rate.num_values > 0 and abs(rate.median - 1) <= MAX_RATE_ERROR_RATIO,
    }


@asynccontextmanager
async def networks() -> AsyncIterator[tuple[NamespaceLinks, tuple[int, int]]]:
    """Networks of two ranks on two nodes, and what it takes to run a program in the first rank's."""
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harness.network", str(os.getpid()), "2", "2"),
        *("sh", "-c", "echo $CHAOS_NETWORKS; exec cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    made = Networks.from_text((await holder.stdout.readline()).decode())
    links = NamespaceLinks(HeldNetworks(ProcessId.of(holder.pid), made), os.urandom(4).hex())
    try:
        yield links, (holder.pid, made.of(LINK[0]).descriptor)
    finally:
        await links.close()
        holder.kill()
        await holder.wait()


def tc(at: tuple[int, int], *words: str) -> str | None:
    """`tc qdisc WORDS` on the interface there; returns what it said against it."""
    verb, *rest = words
    command = enter(*at, ["tc", "qdisc", verb, "dev", INTERFACE, *rest])
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else None


@asynccontextmanager
async def limited(links: NamespaceLinks, at: tuple[int, int], by: str, rate_bits: float) -> AsyncIterator[None]:
    """The link carries at most `rate_bits` from its first end to the second while this is entered."""
    if by == SHAPER:
        rule = {"action": "shape", "rate_bytes_per_second": rate_bits / 8, "way": "out"}
        records = links.plan_rules((LINK,), rule)
        await links.apply_rules(records)
        try:
            yield
        finally:
            remove_rules([*records])
        return
    if refused := tc(at, "add", "root", "tbf", "rate", f"{rate_bits:.0f}bit", "burst", BURST, "latency", LATENCY):
        raise click.ClickException(f"tbf: {refused}")
    try:
        yield
    finally:
        tc(at, "del", "root")


async def round_trips(links: NamespaceLinks, num_probes: int) -> list[float]:
    """Seconds, one after another."""
    told = [await links.probe(LINK, 2.0) for _ in range(num_probes)]
    return [float(one["round_trip_seconds"]) for one in told if one["reached"]]


async def measure_delays(links: NamespaceLinks, figures: Figures, num_probes: int) -> None:
    """The round trips of each delay, each beside those without."""
    for delay in DELAYS_SECONDS:
        before = spread(await round_trips(links, num_probes)).median
        records = links.plan_rules((LINK,), {"action": "shape", "delay_seconds": delay})
        await links.apply_rules(records)
        late = await round_trips(links, num_probes)
        remove_rules([*records])
        figures.add("delay error", SHAPER, delay, *((one - before) / 2 - delay for one in late))


async def measure_rates(links: NamespaceLinks, at: tuple[int, int], figures: Figures, seconds: float) -> None:
    """What one connection carries, and how long a packet waits meanwhile."""
    figures.add("carried", NONE, 0.0, 8 * await links.measure_rate(LINK, MAX_BYTES, TIMEOUT))
    for rate in RATES_BITS:
        num_bytes = min(MAX_BYTES, int(rate / 8 * seconds))
        for by in (SHAPER, TBF):
            async with limited(links, at, by, rate):
                figures.add("rate", by, rate, 8 * await links.measure_rate(LINK, num_bytes, TIMEOUT) / rate)
                filling = asyncio.create_task(links.measure_rate(LINK, num_bytes, TIMEOUT))
                await asyncio.sleep(seconds / 4)
                figures.add("wait", by, rate, *await round_trips(links, NUM_WAITS))
                await filling


async def measure_cost(links: NamespaceLinks, figures: Figures) -> None:
    """A shaper that holds nothing back: what it carries at most, and the CPU time that a gigabyte takes."""
    records = links.plan_rules((LINK,), {"action": "shape", "way": "out"})
    await links.apply_rules(records)
    process = psutil.Process(links._shapers[-1].process.pid)
    before = sum(process.cpu_times()[:2])
    figures.add("carried", SHAPER, 0.0, 8 * await links.measure_rate(LINK, MAX_BYTES, TIMEOUT))
    figures.add("CPU seconds per GB", SHAPER, 0.0, (sum(process.cpu_times()[:2]) - before) * 1e9 / MAX_BYTES)
    remove_rules([*records])


async def measure(num_rounds: int, num_probes: int, rate_seconds: float) -> tuple[Figures, str | None]:
    """All figures, and what the kernel says against netem."""
    figures = Figures()
    async with networks() as (links, at):
        if (netem := tc(at, "add", "root", "netem", "delay", "50ms")) is None:
            tc(at, "del", "root")
        for number in range(num_rounds):
            await measure_delays(links, figures, num_probes)
            await measure_rates(links, at, figures, rate_seconds)
            await measure_cost(links, figures)
            progress(f"round {number + 1} of {num_rounds}")
    return figures, netem


def to_text(figures: Figures, netem: str | None) -> str:
    """The tables."""

    def cells(what: str, by: str, setting: float, unit: float, form: str) -> tuple[str, str, str, str]:
        return figures.spread(what, by, setting).to_text(lambda value: format(value * unit, form))

    delays = [(f"{delay * 1000:g} ms", *cells("delay error", SHAPER, delay, 1e6, "+.0f")) for delay in DELAYS_SECONDS]
    rates = [
        (f"{rate / 1e6:g} Mbit/s, {by}", *cells("rate", by, rate, 100, ".1f"))
        for rate in RATES_BITS
        for by in (SHAPER, TBF)
    ]
    waits = [
        (f"{rate / 1e6:g} Mbit/s, {by}", *cells("wait", by, rate, 1e3, ".0f"))
        for rate in RATES_BITS
        for by in (SHAPER, TBF)
    ]
    most = [
        *((f"Mbit/s through {by}", *cells("carried", by, 0.0, 1e-6, ",.0f")) for by in (NONE, SHAPER)),
        ("CPU seconds of the shaper per GB", *cells("CPU seconds per GB", SHAPER, 0.0, 1, ".2f")),
    ]
    header = ("median", "min", "max", "n")
    kept = verdicts(figures)
    return "\n\n".join(
        [
            f"machine: {describe_machine()}",
            f"netem: {'there is one' if netem is None else netem}",
            table(("delay each way too long by, us (our shaper)", *header), delays),
            table(("carried, % of the rate", *header), rates),
            table(("round trip behind a connection that fills it, ms", *header), waits),
            table(("nothing held back", *header), most),
            f"50 ms within 1 ms: {_word(kept['delay'])}; 20 Mbit/s within 10%: {_word(kept['rate'])}",
        ]
    )


def _word(is_kept: bool) -> str:
    return "yes" if is_kept else "NO"


@click.command(help=__doc__)
@benchmark_options
def main(as_json: bool, quick: bool, out: Path | None) -> None:
    """Measure and print; no run is kept, since none is made."""
    if (reason := why_no_networks()) is not None:
        raise click.ClickException(reason)
    amounts = (QUICK_NUM_ROUNDS, QUICK_NUM_PROBES, QUICK_RATE_SECONDS) if quick else None
    with confined_to(NUM_CORES):
        figures, netem = asyncio.run(measure(*(amounts or (NUM_ROUNDS, NUM_PROBES, RATE_SECONDS))))
    document = {
        "machine": describe_machine().to_dict(),
        "netem": netem or "there is one",
        "figures": [
            {"what": what, "by": by, "setting": setting, **spread(values).to_dict()}
            for (what, by, setting), values in figures.values.items()
        ],
        "kept": verdicts(figures),
    }
    finish(document, to_text(figures, netem), as_json=as_json, has_failures=not all(verdicts(figures).values()))


if __name__ == "__main__":
    main()
