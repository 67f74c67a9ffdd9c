"""Whether a job is still the same training after a restart: what its ranks reported, compared from two passes.

Facts and their comparison are here. `harness.judging` decides what a difference means, and has the words.
"""
