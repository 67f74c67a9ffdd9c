"""What is shown while a run is under way.

Shows what `analysis` makes of the events. Its own figures are the speed of the last few steps and the time left.
"""
