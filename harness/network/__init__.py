"""A network for a run on one machine: a namespace with its own address for every rank, and a bridge between them.

Needs no root where the kernel lets users make namespaces. All of it belongs to one process, the run's fork server,
and ends with it, however it dies.
"""
