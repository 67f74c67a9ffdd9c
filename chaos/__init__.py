"""The injector: experiments, triggers, targets, faults, and how they are injected, verified and undone.

Nothing here imports `harness` or `mecefo_chaos`.
"""
