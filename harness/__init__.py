"""Runs experiments and judges them: backends, the conductor, and everything that is computed from the event log."""
