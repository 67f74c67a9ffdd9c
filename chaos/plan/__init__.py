"""The experiment and its seed -> incidents: scheduled, checked against each other, replayed, shrunk.

Pure: the same input gives the same plan.
"""
