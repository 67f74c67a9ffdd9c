"""One step of one rank: compute, reduce, agree, apply; what it is rated at, its health, its degraded layers.

Membership, and what follows an aborted step, are decided elsewhere.
"""
