"""What the speed of degraded layers costs in convergence: `python -m benchmarks.convergence [--json] [--quick]`."""
