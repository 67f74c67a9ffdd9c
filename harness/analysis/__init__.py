"""The one reader of the event log: what events mean, in steps, incidents, seconds and ratios.

`state` is fed and asked, the rest are functions of what it keeps. `words` has the sentence that live view and report
say of an event. No files, no views, no verdicts.
"""
