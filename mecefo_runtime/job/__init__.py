"""A job as values: its configuration, its layout, what layers cost, how long a step takes.

Pure: no tensors, no I/O, no torch.
"""
