"""How long a benchmark may take at most when it is tried: what is not over by then hangs, on a busy machine too."""

TIMEOUT_SECONDS = 3600.0
