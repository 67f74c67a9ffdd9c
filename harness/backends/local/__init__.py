"""Nodes as process groups on this machine, and commands that are started here.

Neither containers nor other machines.
"""
