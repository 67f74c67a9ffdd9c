"""The command and the injector: experiments, triggers, targets, faults, and the order of acts that breaks a job.

Below `cli` and `commands` nothing here imports `harness`.
"""
