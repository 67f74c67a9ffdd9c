"""The connections of a run: processes report to `chaos`, and every event is written to the log.

Pids and times are translated to those of this host and clock in `peers`, and nowhere else.

Nothing here decides what happens next.
"""
