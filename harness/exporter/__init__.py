"""What Prometheus reads of a run: its events folded into figures as they come, and served while it continues.

`analysis` says what the events mean; here is how much of it may be told to a reader who comes again: counters that
do not fall, a ratio that waits for the step in flight.
"""
