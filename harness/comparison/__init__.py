"""Comparison of runs: repetitions of an experiment, several strategies, or a baseline.

Nothing here reads events: it compares summaries.
"""
