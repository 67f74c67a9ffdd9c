"""Observes the batches, learning rates and random states of an external training's steps, and its whole state.

Code here only reads and reports. Following the phases of a step, and acting on it, belongs elsewhere.
"""
