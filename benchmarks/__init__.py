"""Benchmarks: `python -m benchmarks.NAME [--json] [--quick]` prints medians, spread, n and the machine."""
