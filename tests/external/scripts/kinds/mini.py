"""A launcher without torch: mini.py RANKS RESTARTS SCRIPT; all ranks start again when one has failed.

EARLIER is the number of starts before its first one.
"""

import os
import socket
import subprocess
import sys
import time


def start(attempt, num_ranks, command):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(int(os.environ.get("EARLIER", 0)) + attempt),
        "OMP_NUM_THREADS": "1",
    }
    ranks = range(num_ranks)
    return [subprocess.Popen(command, env={**shared, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in ranks]


def main():
    num_ranks, num_restarts, *script = sys.argv[1:]
    for attempt in range(int(num_restarts) + 1):
        running = start(attempt, int(num_ranks), [sys.executable, *script])
        codes = [None]
        while None in codes and not any(codes):
            codes = [one.poll() for one in running]
            time.sleep(0.02)
        for one in running:
            one.kill()
            one.wait()
        if not any(codes):
            return 0
    return 1


sys.exit(main())
