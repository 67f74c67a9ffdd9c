"""The loop of a rank, its figures and its hooks.

Who is a member is not decided here; the loop obeys the coordinator.
"""
