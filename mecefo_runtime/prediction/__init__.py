"""Step times and layer costs: on named devices, on devices measured elsewhere, and over links of known speed.

Pure: no tensors, no I/O, no torch.
"""
