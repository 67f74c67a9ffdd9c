"""Nodes as containers: engine, image, networks, and the processes inside.

The only room that talks to a Docker engine while a run is under way.
"""
