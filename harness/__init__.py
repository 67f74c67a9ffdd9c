"""Runs experiments and judges them: backends, the conductor, and everything that is computed from the event log.

Nothing here is imported by `mecefo_runtime`, or by `chaos` below its command line.
"""
