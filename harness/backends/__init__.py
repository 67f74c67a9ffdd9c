"""Backends: where the nodes of a job run."""
