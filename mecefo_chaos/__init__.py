"""What stands above everything: the entry points of the installed package, the command line, and the studies.

The name is one that no other project's folders have. `chaos` and `harness` are words that others use, too: what starts
here finds ours by their place.
"""
