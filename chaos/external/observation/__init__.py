"""What a step of an external training is made of: its batches, learning rates, random states; and the whole state.

Here is what only looks and reports. What follows the phases of a step, and what acts on it, is not.
"""
