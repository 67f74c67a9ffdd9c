"""Checks of papers' claims with this product: what they claim, what we find, and whether it agrees.

A folder for each paper. Figures of a paper stand in its `claims`, with their source, and nowhere else. Nothing here
trains or plans: that is asked of the forecast, the runtime and the planners.
"""
