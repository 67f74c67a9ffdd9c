"""What a regroup decides, as values: what becomes of the step in flight, which layout, where state comes from.

No I/O, and no tensors.
"""
