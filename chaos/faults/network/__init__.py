"""Faults of links between ranks, nodes and the coordinator: cut, slowed, flapping, partitioned.

One file for a family of kinds; each is found by being here.
"""
