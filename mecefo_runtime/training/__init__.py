"""The loop of a rank: compute, reduce, agree, apply; its degraded layers, its health, its figures and its hooks.

Who is a member is not decided here; the loop obeys the coordinator.
"""
