"""The pytest plugin: an experiment as a test.

Uses a run as any caller would.
"""
