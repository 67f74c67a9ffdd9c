"""Metrics, gates, summary and verdict: figures in, a verdict and its reasons out.

Pure, from what `analysis` makes of the log, but for `early_end` (ends a run that is certain to fail) and `stored`
(reads a stored run).
"""
