"""Tools that change this machine: processes, memory limits, disks, files, containers, firewall rules.

No fault and no experiment: these are the tools that faults use. `run_files` has the names of a run's files, which the
ledger needs as well as the harness.
"""
