"""What snapshots cost, a part at a time: for `python -m benchmarks.snapshots`."""
