"""The coordinator: who is in an epoch, and what its members are told.

Decisions are values; `coordinator` alone does I/O, and no tensors are here.
"""
