"""The entry points of the installed package, under a name that no other project's folders have.

`chaos` and `harness` are words that others use, too: what starts here finds ours by their place. Nothing else belongs
here.
"""
