"""Faults of what a device computes and reports: tensors, CUDA errors, telemetry.

One file for a family of kinds; each is found by being here.
"""
