"""The Prometheus exporter of a run: figures are updated with each event and served during the run.

`analysis` says what the events mean; this package decides what repeated scrapes may see: counters that never fall, a
ratio that waits for the step in flight.
"""
