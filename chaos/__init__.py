"""The command and the injector: experiments, triggers, targets, faults, and how they are injected.

Below `cli` and `commands` nothing here imports `harness`.
"""
