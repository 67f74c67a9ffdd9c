"""The one reader of the event log: what events mean, in steps, incidents, seconds and ratios.

`state` is fed and asked, the rest are functions of what it keeps. No files, no views, no verdicts.
"""
