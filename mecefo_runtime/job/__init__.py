"""A job as values: configuration, layout and the transfers to it, what layers cost, how long a step takes.

Pure: no tensors, no I/O, no torch.
"""
