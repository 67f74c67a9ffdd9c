"""The training loop of a rank, its metrics and its hooks.

The coordinator decides the membership; the loop follows it.
"""
