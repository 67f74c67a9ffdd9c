"""Where runs lie on disk, and how their logs are read.

Of events it reads the name of the run, its state and its last step, for lists of runs; all else is for `analysis`.
"""
