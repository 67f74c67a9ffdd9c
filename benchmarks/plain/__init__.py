"""Plain PyTorch training without fault tolerance, and runs of it beside ours (see `benchmarks.fault_free`)."""
