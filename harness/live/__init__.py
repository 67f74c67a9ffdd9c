"""What is shown while a run is under way.

Shows figures of `analysis`; computes none of its own.
"""
