"""Other ways to survive the same kill, run beside ours by `python -m benchmarks.failover --peers`."""
