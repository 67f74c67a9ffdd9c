"""The connections of a run: processes report to `chaos`, and every event is written to the log.

Nothing here decides what happens next.
"""
