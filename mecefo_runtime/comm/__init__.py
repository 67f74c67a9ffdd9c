"""Groups of an epoch and operations on them, probes of peers, and the messages of ranks, supervisors and coordinator.

Nothing here decides who is a member, or what is computed.
"""
