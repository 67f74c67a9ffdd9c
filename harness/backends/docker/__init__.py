"""Nodes as containers: engine, image, networks, and the processes inside.

The only package that talks to a Docker engine during a run.
"""
