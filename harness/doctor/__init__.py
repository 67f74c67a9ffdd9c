"""`chaos doctor`: what runs need, what this machine lacks, what it is for, and what to do.

Nothing here changes the machine; each backend examines its own needs.
"""
