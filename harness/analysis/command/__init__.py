"""What only an external job has: starts by its own launcher, and ranks whose state nobody here knows beforehand.

Functions of records. No jobs of our own runtime, no files.
"""
