"""Snapshots of the state in the nodes' memory: written by ranks, kept by a process of the node, protected by codes.

What is restored from where is decided elsewhere (`job.state_source`, `membership`).
"""
