"""Backends: where the nodes of a job run.

A backend starts, repairs and ends processes; it knows no fault by name, no phase and no verdict.
"""
