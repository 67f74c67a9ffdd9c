"""MeCeFO (arXiv 2510.16415): claims beside forecasts, emulated runs, memory and perplexity, with a verdict for each.

`check.py` is the way in; `claims` has the paper's figures, `setting` its experiment as values. No figure of ours is
written down here but those in JSON files that say when and by what command they were measured.
"""
