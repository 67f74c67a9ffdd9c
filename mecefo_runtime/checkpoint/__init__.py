"""Durable checkpoints: how units are written to a folder, vouched for, found again and read.

When to write and when to go back is decided elsewhere.
"""
