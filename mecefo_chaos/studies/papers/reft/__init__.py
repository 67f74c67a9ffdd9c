"""REFT (arXiv 2310.12670): how often the state in the nodes' memory survives, and what a loss costs, by each source.

`check.py` is the way in; `claims` has the paper's figures. What a closed form says is held against the product's own
groups, offers and choice (`sampling`), and against real snapshot processes that are killed (`draws`). No figure of ours
is written down here but those in `measured.json`, which says when and by what command they were measured.
"""
