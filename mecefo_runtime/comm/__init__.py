"""What ranks say to each other: groups of an epoch, operations on them, probes of peers, the control connection.

Nothing here decides who is a member, or what is computed.
"""
