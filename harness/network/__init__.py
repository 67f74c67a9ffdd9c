"""A network for a run on one machine: a namespace with an address of its own for every rank, and a bridge among them.

Needs no root where the kernel lets users make namespaces. All of it belongs to one process, the run's fork server, and
is gone with it, however it dies.
"""
