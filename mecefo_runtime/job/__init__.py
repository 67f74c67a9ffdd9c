"""A job as values: configuration, layout and the transfers to it, what layers cost.

Pure: no tensors, no I/O, no torch.
"""
