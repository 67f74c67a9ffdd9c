"""Analysis of external jobs: starts by their own launcher, and ranks whose state is not known beforehand.

Functions of records. No jobs of our own runtime, no files.
"""
