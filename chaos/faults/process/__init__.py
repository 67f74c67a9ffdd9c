"""Faults of processes: killed, crashed, paused, hung, slowed, starved of memory.

One file for a family of kinds; each is found by being here.
"""
