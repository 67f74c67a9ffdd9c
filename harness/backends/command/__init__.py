"""Your own training command as a job: started on this machine, or once on each of separate nodes.

Which nodes those are is up to a backend.
"""
