"""Faults of checkpoints and of the disk that they are written to.

One file for a family of kinds; each is found by being here.
"""
