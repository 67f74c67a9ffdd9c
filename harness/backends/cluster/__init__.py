"""Hosts of a cluster: an engine names them and starts our agent on each; faults and observation go through the agents.

Jobs are started by the user's own launcher, or once on each host.
"""
