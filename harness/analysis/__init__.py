"""The one reader of the event log: what events mean, in steps, incidents, seconds and ratios.

No files, no views, no verdicts.
"""
