"""Whether a job is still the same training after a restart: what its ranks reported, compared from two passes.

Facts and their comparison are here. What a difference means for the verdict, and its words, is in `harness.judging`.
"""
