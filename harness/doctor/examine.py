"""All checks of this machine, in their order of display."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path

from harness.doctor import fault_needs, machine
from harness.doctor.finding import Finding
from harness.doctor.torch_build import TorchLook


def examine(out: Path) -> Generator[Finding, None, bool]:
    """What this machine has of what runs need, one finding after the other as it is known; `out` is for their files.

    Nothing is changed; what is tried out is gone again when its finding comes. Returns False where what is missing
    leaves nothing else to look at.
    """
    yield (first := machine.SYSTEM.looked(machine.system))
    yield machine.PYTHON.looked(machine.python)
    if first.outcome != "ok":
        # Everything else is Linux's.
        return False
    yield (table := machine.PROCESSES.looked(machine.process_table))
    if table.outcome == "missing":
        # The others look into /proc, too.
        return False
    torch = TorchLook()
    with torch:
        yield machine.CORES.looked(machine.cores)
        yield machine.MEMORY.looked(machine.memory)
        yield machine.SHARED.looked(machine.shared_memory)
        yield machine.OPEN_FILES.looked(machine.open_files)
        yield machine.RUNS.looked(partial(machine.runs_folder, out))
        yield (temporary := machine.TEMPORARY.looked(machine.temporary_files))
        if temporary.outcome == "ok":
            yield machine.STATE.looked(machine.state_folder)
            yield machine.EARLIER.looked(machine.earlier_runs)
        yield fault_needs.NETWORKS.looked(fault_needs.networks)
        yield fault_needs.QUEUES.looked(fault_needs.packet_queue)
        yield fault_needs.MEMORY_GROUPS.looked(fault_needs.memory_groups)
        yield fault_needs.MOUNTS.looked(fault_needs.mounts)
        yield from torch.findings()
    return True
