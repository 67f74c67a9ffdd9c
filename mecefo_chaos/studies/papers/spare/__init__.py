"""SPARe (arXiv 2603.00357): closed forms by chance, and its simulation again, under assumptions that have names.

`check.py` is the way in; `claims` has the paper's figures. Closed forms (`closed_forms`) are held against drawn orders
of failures (`endurance`), the table of times to train against a step loop (`simulation`). Who computes what after a
failure is asked of the runtime's own controller. No figure of ours is written down here but those in `simulated.json`,
which says when and by what command they were made.
"""
