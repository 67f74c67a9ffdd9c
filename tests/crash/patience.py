"""For jobs of which no rank is to be taken for lost but those that were killed, however long the machine is busy."""

# A patch of the command, which tells its ranks. Connections that close are noticed at once all the same.
PATIENT = """
import sys

if sys.orig_argv[1] == "-c":
    from mecefo_runtime.job.config import JobConfig

    set_up = JobConfig.__init__

    def set_up_patiently(self, *args, **fields):
        set_up(self, *args, **{"heartbeat_timeout_seconds": 60.0, **fields})

    JobConfig.__init__ = set_up_patiently
"""
