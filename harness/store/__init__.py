"""Where runs lie on disk, and how their logs are read.

Nothing here knows what an event means.
"""
