"""Comparison of runs: repetitions of an experiment, several strategies, or a reference.

Nothing here reads events: it compares summaries.
"""
