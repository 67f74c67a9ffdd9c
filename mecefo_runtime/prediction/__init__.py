"""How long a step takes, and what layers cost: on devices that are named, measured elsewhere, or linked at some speed.

Pure: no tensors, no I/O, no torch.
"""
