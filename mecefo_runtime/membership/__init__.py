"""The coordinator: who is in an epoch, what becomes of the step in flight, which layout comes next.

Decisions are values; `coordinator` alone does I/O, and no tensors are here.
"""
