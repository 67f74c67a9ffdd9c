"""What is shown while a run is under way.

Shows what `analysis` makes of the events. The one figure of its own is the speed of the last few steps.
"""
