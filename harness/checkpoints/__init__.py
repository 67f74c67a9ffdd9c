"""The health of the checkpoints that a command saved, read from outside: whole, readable, finite; and pointers.

It reads and never writes, runs no code of a checkpoint, and judges nothing: that is done from the event log.
"""
