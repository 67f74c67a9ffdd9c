"""One step of one rank: compute, reduce, agree, apply; what it is rated at, its health, its degraded layers.

Who is a member, and what comes after a broken step, is not decided here.
"""
