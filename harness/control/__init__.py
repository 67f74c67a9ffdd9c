"""The connections of a run: who reports to `chaos`, and how every event gets into the log.

Nothing here decides what happens next.
"""
