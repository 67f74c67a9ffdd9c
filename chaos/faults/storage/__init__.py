"""Faults of checkpoints, of the disk that they are written to, and of snapshots in memory.

One file for a family of kinds; each is found by being here.
"""
