"""A machine on which nodes of a job run, and what it answers before the start: what it has, and what it lacks.

Answers are plain values, so that another machine can send its own. No backend, and nothing that starts a job.
"""
