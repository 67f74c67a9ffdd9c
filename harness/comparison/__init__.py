"""Runs beside each other: the same experiment again and again, under several strategies, or against a baseline.

Nothing here reads events: it compares summaries.
"""
