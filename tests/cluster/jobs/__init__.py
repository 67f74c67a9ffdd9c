"""Training scripts that know nothing of chaos, for several hosts."""
