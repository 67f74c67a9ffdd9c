"""Your own training command as a job, on this machine.

Containers for it are in `docker`.
"""
