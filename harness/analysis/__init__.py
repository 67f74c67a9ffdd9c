"""The one reader of the event log: what events mean, in steps, incidents, seconds and ratios.

`state` takes events in; the other modules are functions of what it keeps. `narrator` has the sentence that the live
view and the report show for an event. No files, no views, no verdicts.
"""
