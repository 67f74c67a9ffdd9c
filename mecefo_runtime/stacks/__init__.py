"""SPARe (arXiv 2603.00357): which group holds which shards of a step, and who computes which after losses.

Pure: no I/O, no torch; what a layout makes of it is not decided here.
"""
