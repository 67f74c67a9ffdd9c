"""Metrics, gates, summary and verdict: figures in, one word and its reasons out.

Pure: computed from what `analysis` makes of the log.
"""
