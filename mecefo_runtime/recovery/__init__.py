"""What a regroup decides, as values: the step in flight, the new layout, and the source of state.

No I/O, and no tensors.
"""
