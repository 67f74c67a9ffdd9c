"""The coordinator: which ranks are in an epoch, and the messages to its members.

Decisions are values; `coordinator` alone does I/O, and no tensors are here.
"""
